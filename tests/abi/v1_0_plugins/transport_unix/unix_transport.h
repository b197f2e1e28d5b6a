/* unix_transport.h - what the two files of the transport share: traffic.c moves bytes, transport_unix.c connects. */
#ifndef UNIX_TRANSPORT_H_
#define UNIX_TRANSPORT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/abi/v1_0/transport.h"

enum {
  kPiece = 64 << 10, /* bytes of one packet: also the largest message */
  kDepth = 128,      /* operations that may wait for one peer */
  kPool = 256,       /* messages of one peer that may be unreleased */
  kWaiting = 64,     /* connections of peers that are not known yet */
  kWakeups = 64,     /* descriptors that one poll looks at */
};
#define HELLO 0x55504201u /* the first packet: its high bytes are a magic number */
#define MESSAGE 2u
#define WRITE 3u

typedef struct packet {
  uint32_t type;
  uint32_t immediate; /* WRITE: of the last piece; HELLO: the sender's number at the receiver */
  uint32_t size;      /* bytes that follow */
  uint32_t last;      /* WRITE: 1 for the last piece */
  uint64_t nonce;     /* WRITE: of the region; HELLO: the job's key */
  uint64_t slot;      /* WRITE: of the region */
  uint64_t offset;
} packet;

typedef struct key {
  uint64_t slot, nonce;
} key;

struct bps_region {
  char* base;
  size_t size;
  uint64_t slot, nonce;
};

/* An operation that has not left completely. */
typedef struct operation {
  struct operation* next;
  packet head;
  uint32_t event; /* BPS_EVENT_SENT or BPS_EVENT_WRITTEN */
  uint64_t user;
  const bps_region* region;
  const char* from;
  size_t left;
  char copy[]; /* of a message */
} operation;

typedef struct peer peer;

/* One end of a socket, as epoll hands it back. */
typedef struct connection {
  struct connection* next; /* among those that wait for their peer */
  int fd;                  /* -1: none */
  bool incoming;
  peer* owner;     /* NULL: the listener, or a caller that is not known yet */
  uint32_t number; /* a caller's, once it has said HELLO; else BPS_PEER_UNKNOWN */
  bool watched;    /* in the epoll set */
} connection;

struct peer {
  peer* next;
  bps_peer number;
  bool down;
  connection out;
  connection* in; /* NULL: it has not called yet */
  operation *first, **end;
  size_t depth, unreleased;
  bool blocked; /* the socket is full: epoll tells when there is room */
};

typedef struct lease {
  struct lease *next, **back;
  bps_peer number;
  char data[];
} lease;

struct bps_transport {
  void* log;
  uint64_t job_key, nonce;
  int epoll;
  connection listener;
  struct sockaddr_un name;
  socklen_t name_size;
  peer* peers;
  connection* waiting;
  size_t waiting_count;
  lease* leases;
  bps_region** regions; /* by slot; NULL: free */
  size_t region_count;
  bps_event* events; /* a ring: event_count of them from event_first on */
  size_t event_first, event_count, event_capacity, owed;
  char provider[160];
};

extern const bps_plugin_host* host;

/* ---- Events ---- */

/* Room for `more` events, beside those that are owed: ends of operations, and two for each peer. */
bool reserve(bps_transport* t, size_t more);
/* The next event, for the caller to fill in. Room for it has been reserved. */
bps_event* push(bps_transport* t, uint32_t type, bps_peer number, int32_t code);

/* ---- Connections ---- */

/* Has epoll tell of it. */
void watch(bps_transport* t, connection* c, uint32_t interest);
void shut(bps_transport* t, connection* c);
void drop_connection(bps_transport* t, connection* c);
/* This connection is that peer's. */
void adopt(bps_transport* t, peer* p, connection* c);

/* ---- Peers ---- */

/* NULL: no such peer. */
peer* find(bps_transport* t, bps_peer number);
/* The operation at `at` is over. */
void finish(bps_transport* t, peer* p, operation** at, int32_t code);
/* Ends its operations and connections: nothing of it lands any more. */
void cut(bps_transport* t, peer* p, int32_t code);
/* It is lost: its operations end, then PEER_DOWN tells why. `why`: a literal. */
void lose(bps_transport* t, peer* p, const char* why);

/* ---- Traffic ---- */

/* 1: it has left; 0: no room; -1: the connection is broken. */
int send_packet(const peer* p, const packet* head, const void* data);
int32_t post_send(bps_transport* t, bps_peer number, const void* data, size_t size, uint64_t user);
int32_t post_write(bps_transport* t, bps_peer number, const bps_local* from, size_t size, const bps_remote* to,
                   uint32_t immediate, uint64_t user);
size_t poll_events(bps_transport* t, bps_event* events, size_t capacity);
void release(bps_transport* t, uint64_t number);

#endif /* UNIX_TRANSPORT_H_ */
