/* transport.h - the contract of a transport plugin: messages, writes with an immediate, and the death of peers.
 *
 * A transport is one endpoint of this process, driven by its owner:
 *
 *     plugin->open(&args, &transport, failure)
 *     plugin->address(...)                         bytes that the control plane carries to the peers
 *     plugin->connect(transport, &connect_args, failure)
 *     plugin->post_send / post_write / post_read   never block
 *     plugin->poll(transport, events, n)           the only place where progress is made
 *     plugin->arm, then poll(2) on plugin->wait_fd when there is nothing to do
 *
 * The subtle parts:
 *
 * Threads.      All functions on one transport are called by one thread at a time (not always the same one), except
 *               copy_from and copy_to, which may be called on any thread. Different transports are independent.
 * Acceptance.   post_* returns BPS_OK: exactly one event with its `user` will follow; or BPS_TRANSPORT_AGAIN: nothing
 *               happened and nothing will follow, try after the next poll; or another code: nothing will follow.
 * Buffers.      The event SENT, WRITTEN or READ gives the local memory back, and says no more: not that anything
 *               arrived. post_send copies its data before it returns.
 * Visibility.   IMMEDIATE means: all bytes of that write are visible to this CPU. MESSAGE likewise for its data.
 * Order.        Messages of one peer arrive in the order they were posted. Nothing else is ordered: a write may be
 *               seen before or after a message posted later or earlier, unless BPS_TRANSPORT_WRITE_ORDERED.
 * Receiving.    A message holds one buffer of the peer's receive pool until release(). The owners agree among
 *               themselves on credits so that a pool never runs dry (caps.receive_pool); a plugin may declare a peer
 *               dead that overruns it.
 * Failure.      The event of a failed operation carries the code. When a peer is lost, all its outstanding operations
 *               end with BPS_UNAVAILABLE or BPS_CANCELLED, then one PEER_DOWN follows; later posts to it return
 *               BPS_UNAVAILABLE. After PEER_DOWN a late write of that peer may still land until unreg or disconnect
 *               of what it was shown. A peer that comes back is connected anew under a new peer number.
 * The fence.    disconnect() ends with one DISCONNECTED event: from then on nothing of that peer lands any more, and
 *               no other peer was disturbed. Its outstanding operations end with BPS_CANCELLED before that event.
 * Idle.         A transport that is not polled uses no CPU.
 */
#ifndef BYTEPS_ABI_TRANSPORT_H_
#define BYTEPS_ABI_TRANSPORT_H_

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_TRANSPORT_ABI_MINOR 2

/* One endpoint of this process. Defined by the plugin. */
typedef struct bps_transport bps_transport;

/* A range of registered memory of this process. Defined by the plugin. */
typedef struct bps_region bps_region;

/* Peers are numbered by the owner of the transport; numbers are never used again within one transport. */
typedef uint32_t bps_peer;
#define BPS_PEER_UNKNOWN 0xffffffffu /* no peer: the owner must not use this number */

#define BPS_TRANSPORT_AGAIN (-1)
#define BPS_TRANSPORT_MAX_KEY 64
#define BPS_TRANSPORT_MAX_ADDRESS 512

/* Capabilities (caps.flags). */
#define BPS_TRANSPORT_READ 0x1u       /* post_read works */
#define BPS_TRANSPORT_MAP_REMOTE 0x2u /* map_remote works */
#define BPS_TRANSPORT_COPY 0x4u       /* copy_from and copy_to work */
#define BPS_TRANSPORT_CUDA 0x8u       /* reg_device works (1.2) */
#define BPS_TRANSPORT_WAIT_FD 0x10u   /* wait_fd and arm work; otherwise the owner polls at intervals */
#define BPS_TRANSPORT_WRITE_ORDERED 0x20u
#define BPS_TRANSPORT_LOCAL_ANY 0x40u /* post_write and post_read accept local memory that is not registered */
#define BPS_TRANSPORT_CHEAP_REG 0x80u /* reg and unreg cost less than copying 64 KiB: may be done per operation */
/* What reg makes is a range of addresses and holds on to no page: each transfer reaches what is mapped there at that
 * time. So it may stay registered when its memory is freed, and mean what is mapped there next. */
#define BPS_TRANSPORT_REG_ADDRESSES 0x100u

typedef struct bps_transport_caps {
  size_t struct_size;
  uint32_t flags;
  uint32_t immediate_bits; /* usable bits of an immediate, at least 24 */
  uint32_t max_message;    /* bytes, at least 16384 */
  uint32_t receive_pool;   /* messages one peer may have unreleased here, at least 16 */
  uint32_t tx_depth;       /* operations that may be outstanding before AGAIN is likely */
  uint32_t key_size;       /* bytes of an exported key, at most BPS_TRANSPORT_MAX_KEY */
  uint64_t max_transfer;   /* bytes of one write or read */
  uint32_t alignment;      /* of local and remote addresses; 1 if none is needed */
  uint32_t reserved;
  const char* provider; /* for people and for comparing both ends: "tcp"; valid while the transport is */
} bps_transport_caps;

typedef struct bps_transport_open_args {
  size_t struct_size;
  const void* config;     /* for host->config */
  void* log;              /* for host->log */
  const char* local_host; /* numeric address to bind and advertise; NULL: the plugin chooses */
  const char* device;     /* device or domain; NULL: the plugin chooses */
  uint64_t job_key;       /* random number of the job: a plugin may use it to tell jobs apart */
} bps_transport_open_args;

typedef struct bps_connect_args {
  size_t struct_size;
  bps_peer peer;       /* how we call it */
  uint32_t local_id;   /* how it calls us: the number it gave to connect() for us, sent with what we send */
  const void* address; /* what its address() gave */
  size_t address_size;
  /* Who it is, for logs: "server 1 (host b, 10.0.0.2, pid 42)"; valid during the call, NULL: unknown. */
  const char* name;
} bps_connect_args;

/* Events. */
#define BPS_EVENT_SENT 1         /* user, code */
#define BPS_EVENT_WRITTEN 2      /* user, code */
#define BPS_EVENT_READ 3         /* user, code */
#define BPS_EVENT_MESSAGE 4      /* peer, data, size, lease: release(lease) gives the buffer back */
#define BPS_EVENT_IMMEDIATE 5    /* peer (BPS_PEER_UNKNOWN where the provider does not tell), immediate */
#define BPS_EVENT_PEER_DOWN 6    /* peer, code; since 1.1 data, size: why, see below */
#define BPS_EVENT_DISCONNECTED 7 /* peer */
/* Why a peer is down: for people, as it follows "the peer": "took nothing for 3000 ms"; no 0 behind it, valid until the
 * next poll; size 0: not known. */

typedef struct bps_event {
  uint32_t type;
  int32_t code; /* BPS_OK or why it failed */
  bps_peer peer;
  uint32_t immediate;
  uint64_t user;
  const void* data;
  size_t size;
  uint64_t lease;
} bps_event;

/* Local memory of an operation: an offset in a region, or, with BPS_TRANSPORT_LOCAL_ANY, region NULL and any address.
 */
typedef struct bps_local {
  bps_region* region;
  void* base; /* region == NULL: the address; else the address within the region */
} bps_local;

/* Remote memory: an exported key and an offset from the start of the region it was exported for. */
typedef struct bps_remote {
  const void* key;
  size_t key_size;
  uint64_t offset;
} bps_remote;

/* Memory of a GPU (1.2). */
typedef struct bps_device_memory {
  size_t struct_size;
  void* base; /* as the GPU's driver counts; the host cannot touch what lies there */
  uint64_t size;
  int32_t type;   /* BPS_CUDA */
  int32_t id;     /* which GPU, as the process counts them */
  int32_t dmabuf; /* a descriptor of a dma-buf of these bytes from its first one on, open during the call; -1: none */
  int32_t reserved;
} bps_device_memory;

typedef struct bps_transport_table {
  size_t struct_size;

  /* -- Required -- */

  /* Opens an endpoint. */
  int32_t (*open)(const bps_transport_open_args* args, bps_transport** transport, bps_failure* failure);
  /* Ends every outstanding operation with BPS_CANCELLED (no events are delivered any more), gives everything back.
   * Regions must have been unregistered. Does not wait for peers. */
  void (*close)(bps_transport* transport);
  /* Fills up to caps->struct_size. */
  void (*caps)(bps_transport* transport, bps_transport_caps* caps);
  /* Writes this endpoint's address (at most BPS_TRANSPORT_MAX_ADDRESS bytes), sets *size. */
  int32_t (*address)(bps_transport* transport, void* out, size_t* size, bps_failure* failure);
  /* Makes `peer` known. Does not block and does not wait for the peer: what is posted before the connection stands is
   * accepted or answered with AGAIN. May be called at any time, on either side first: messages of a sender that this
   * side has not connected yet may be dropped. */
  int32_t (*connect)(bps_transport* transport, const bps_connect_args* args, bps_failure* failure);
  /* The fence; see above. One DISCONNECTED event follows, also for a peer that is already down. */
  int32_t (*disconnect)(bps_transport* transport, bps_peer peer);
  /* Registers [base, base + size) for local use and for writes (and reads) of peers that are shown its key. */
  int32_t (*reg)(bps_transport* transport, void* base, size_t size, bps_region** region, bps_failure* failure);
  /* Operations of this side in flight on it end with BPS_CANCELLED first; when this returns, no peer's write or read
   * touches the memory any more, and none will. */
  void (*unreg)(bps_transport* transport, bps_region* region);
  /* Writes the key (caps.key_size bytes, position-independent) that gives `peer` access to `region`. */
  int32_t (*export_key)(bps_transport* transport, bps_region* region, bps_peer peer, void* key);
  /* Sends a message, 1 .. caps.max_message bytes. */
  int32_t (*post_send)(bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user);
  /* Writes `size` bytes (0 .. caps.max_transfer) into remote memory; the peer then sees IMMEDIATE(immediate). */
  int32_t (*post_write)(bps_transport* transport, bps_peer peer, const bps_local* from, size_t size,
                        const bps_remote* to, uint32_t immediate, uint64_t user);
  /* Makes progress and fetches up to `capacity` events; returns their number. Never blocks. */
  size_t (*poll)(bps_transport* transport, bps_event* events, size_t capacity);
  /* Gives the buffer of a MESSAGE back. */
  void (*release)(bps_transport* transport, uint64_t lease);

  /* -- Optional: announced by a capability -- */

  int32_t (*post_read)(bps_transport* transport, bps_peer peer, const bps_local* to, size_t size,
                       const bps_remote* from, uint64_t user);
  /* Maps remote memory into this process; valid until disconnect of the peer. */
  int32_t (*map_remote)(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base);
  /* Copies between this process and remote memory at once, on the calling thread. */
  int32_t (*copy_from)(bps_transport* transport, bps_peer peer, const bps_remote* from, void* to, size_t size);
  int32_t (*copy_to)(bps_transport* transport, bps_peer peer, const bps_remote* to, const void* from, size_t size);
  /* A descriptor that poll(2) reports readable when there may be work. The same for the life of the transport. */
  int32_t (*wait_fd)(bps_transport* transport);
  /* Call before poll(2) on wait_fd: BPS_OK: it is safe to block; BPS_TRANSPORT_AGAIN: poll the transport first. */
  int32_t (*arm)(bps_transport* transport);
  /* Memory the transport prefers (for example such as both sides can map), registered; freed by unreg. */
  int32_t (*allocate)(bps_transport* transport, size_t size, bps_region** region, void** base, bps_failure* failure);

  /* -- Optional, since 1.1 -- */

  /* As reg, of memory that is a shared mapping of the memory file `fd` (memfd_create, its size sealed) from its first
   * byte on: peers of the same host may map it, too. The memory stays its owner's, before and after; `fd` must stay
   * open until unreg. Where a peer stands still in the middle of a write, unreg may exchange the pages for copies,
   * which are this process's alone: the file's permissions are 0 then. What a peer gets from map_remote of it is for
   * reading; it writes between begin_write and end_write. */
  int32_t (*reg_shared)(bps_transport* transport, void* base, size_t size, int32_t fd, bps_region** region,
                        bps_failure* failure);
  /* Gives back what one map_remote of this key has given: the pointer is not used any more. */
  void (*unmap_remote)(bps_transport* transport, bps_peer peer, const bps_remote* remote);
  /* Gives a pointer to remote memory that may be written until end_write, within microseconds: unreg and disconnect of
   * its owner wait for that. BPS_UNIMPLEMENTED: not this memory, use copy_to; BPS_NOT_FOUND: it was taken back;
   * BPS_TRANSPORT_AGAIN: it is not here yet, poll first (as with map_remote). */
  int32_t (*begin_write)(bps_transport* transport, bps_peer peer, const bps_remote* remote, size_t size, void** base);
  void (*end_write)(bps_transport* transport, bps_peer peer, const bps_remote* remote);

  /* post_send of the message and post_write behind it, as one that costs less than both: either both are accepted, and
   * one event follows, that of the write, or neither is. BPS_UNIMPLEMENTED: not now, or not of this transport: post
   * them one by one. */
  int32_t (*post_send_and_write)(bps_transport* transport, bps_peer peer, const void* message, size_t message_size,
                                 const bps_local* from, size_t size, const bps_remote* to, uint32_t immediate,
                                 uint64_t user);

  /* -- Optional, since 1.2: announced by BPS_TRANSPORT_CUDA -- */

  /* As reg, of memory of a GPU, which the network card reads and writes itself: post_write takes it as local memory,
   * and peers write into it. Its owner sees to the order: nothing is posted from it before the GPU has written it, and
   * IMMEDIATE means that the bytes have reached the GPU, not that its next work sees them (abi/device.h,
   * flush_remote). */
  int32_t (*reg_device)(bps_transport* transport, const bps_device_memory* memory, bps_region** region,
                        bps_failure* failure);
} bps_transport_table;

struct bps_transport_plugin {
  size_t struct_size;
  bps_plugin_info info;
  /* Is what this transport needs present (device, driver, limits)? BPS_OK, or a code with a one-sentence reason. Cheap;
   * required. */
  int32_t (*probe)(const void* config, bps_failure* failure);
  const bps_transport_table* table;
};

typedef int32_t (*bps_transport_plugin_fn)(const bps_plugin_host* host, const bps_transport_plugin** plugin);

#define BPS_TRANSPORT_ENTRY "bps_transport_plugin_v1"

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_TRANSPORT_H_ */
