/* transport_unix.c - a transport plugin in plain C11: Unix sockets, for processes of one host. Here are the plugin, its
 * endpoints, their peers and regions; traffic.c moves the bytes.
 *
 *     cc -std=c11 -Wall -Wextra -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags byteps) *.c \
 *        -o libbyteps_transport_unix.so
 *     bps_conformance --transport ./libbyteps_transport_unix.so
 *
 * How it works. Each endpoint listens on an abstract socket; its name is the endpoint's address. Each side connects to
 * the other and sends over its own connection, so every connection carries packets in one direction:
 *
 *     HELLO     who calls: the number under which the receiver knows the sender
 *     MESSAGE   one message, whole
 *     WRITE     a piece of a write: which region, where in it, the bytes; the last piece carries the immediate
 *
 * SOCK_SEQPACKET keeps packets whole and in order. What the socket does not take now waits in the peer's queue and goes
 * when poll() finds room. The receiver reads a piece straight to its place, or drops it when the region is gone: that
 * is the fence of unreg. A closed socket is the fence of disconnect, and the news of a peer's death. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "unix_transport.h"

const bps_plugin_host* host;

/* ---- Connecting ---- */

static int32_t connect_peer(bps_transport* t, const bps_connect_args* args, bps_failure* failure) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  if (args->address_size == 0 || args->address_size > sizeof name.sun_path) {
    return host->fail(failure, BPS_INVALID_ARGUMENT, "this is no address of the transport unix");
  }
  if (args->peer == BPS_PEER_UNKNOWN || find(t, args->peer) != NULL) {
    return host->fail(failure, BPS_INVALID_ARGUMENT, "this peer number has been used");
  }
  memcpy(name.sun_path, args->address, args->address_size);
  peer* p = calloc(1, sizeof *p);
  if (p == NULL || !reserve(t, 2)) {
    free(p);
    return host->fail(failure, BPS_RESOURCE_EXHAUSTED, "no memory for a peer");
  }
  p->number = args->peer;
  p->end = &p->first;
  p->out.owner = p;
  p->out.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (p->out.fd < 0) {
    free(p);
    return host->fail(failure, BPS_RESOURCE_EXHAUSTED, "no socket for a peer (ulimit -n)");
  }
  p->next = t->peers;
  t->peers = p;
  t->owed += 2;
  /* On one host this succeeds or fails at once: a process that has an address listens. */
  const packet hello = {.type = HELLO, .immediate = args->local_id, .nonce = t->job_key};
  if (connect(p->out.fd, (struct sockaddr*)&name, (socklen_t)(sizeof(sa_family_t) + args->address_size)) != 0 ||
      send_packet(p, &hello, NULL) != 1) {
    lose(t, p, "cannot be reached: no process listens at its address; is it on this host, and alive?");
    return BPS_OK;
  }
  watch(t, &p->out, EPOLLIN);
  for (connection** at = &t->waiting; *at != NULL; at = &(*at)->next) {
    connection* c = *at;
    if (c->number != args->peer) continue;
    *at = c->next;
    --t->waiting_count;
    adopt(t, p, c);
    break;
  }
  return BPS_OK;
}

static int32_t disconnect(bps_transport* t, bps_peer number) {
  peer** at = &t->peers;
  while (*at != NULL && (*at)->number != number) at = &(*at)->next;
  peer* p = *at;
  if (p == NULL) return BPS_INVALID_ARGUMENT;
  cut(t, p, BPS_CANCELLED);
  *at = p->next;
  free(p);
  t->owed -= 2;
  push(t, BPS_EVENT_DISCONNECTED, number, BPS_OK);
  return BPS_OK;
}

/* ---- Memory ---- */

static int32_t reg(bps_transport* t, void* base, size_t size, bps_region** out, bps_failure* failure) {
  size_t slot = 0;
  while (slot < t->region_count && t->regions[slot] != NULL) ++slot;
  bps_region* region = malloc(sizeof *region);
  if (region != NULL && slot == t->region_count) {
    bps_region** regions = realloc(t->regions, 2 * (slot + 8) * sizeof *regions);
    if (regions != NULL) {
      t->regions = regions;
      t->region_count = 2 * (slot + 8);
      memset(regions + slot, 0, (t->region_count - slot) * sizeof *regions);
    }
  }
  if (region == NULL || slot == t->region_count) {
    free(region);
    return host->fail(failure, BPS_RESOURCE_EXHAUSTED, "no memory for a region");
  }
  *region = (bps_region){.base = base, .size = size, .slot = slot, .nonce = ++t->nonce};
  t->regions[slot] = region;
  *out = region;
  return BPS_OK;
}

static void unreg(bps_transport* t, bps_region* region) {
  for (peer* p = t->peers; p != NULL; p = p->next) {
    for (operation** at = &p->first; *at != NULL;) {
      if ((*at)->region == region) {
        finish(t, p, at, BPS_CANCELLED);
      } else {
        at = &(*at)->next;
      }
    }
  }
  t->regions[region->slot] = NULL;
  free(region);
}

static int32_t export_key(bps_transport* t, bps_region* region, bps_peer number, void* out) {
  (void)t;
  (void)number;
  const key exported = {region->slot, region->nonce};
  memcpy(out, &exported, sizeof exported);
  return BPS_OK;
}

/* ---- The endpoint ---- */

/* Both ends must be in one network namespace of one host: abstract names mean nothing elsewhere. */
static void describe(char* text, size_t size) {
  char boot[64] = "", space[64] = "";
  FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file != NULL) {
    if (fgets(boot, sizeof boot, file) != NULL) boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
  }
  const ssize_t length = readlink("/proc/self/ns/net", space, sizeof space - 1);
  space[length < 0 ? 0 : length] = '\0';
  snprintf(text, size, "unix;%s;%s", boot, space);
}

static void close_endpoint(bps_transport* t) {
  while (t->peers != NULL) {
    peer* p = t->peers;
    t->peers = p->next;
    cut(t, p, BPS_CANCELLED);
    free(p);
  }
  while (t->waiting != NULL) {
    connection* c = t->waiting;
    t->waiting = c->next;
    drop_connection(t, c);
  }
  while (t->leases != NULL) {
    lease* kept = t->leases;
    t->leases = kept->next;
    free(kept);
  }
  shut(t, &t->listener);
  if (t->epoll >= 0) close(t->epoll);
  free(t->regions);
  free(t->events);
  free(t);
}

static int32_t open_endpoint(const bps_transport_open_args* args, bps_transport** out, bps_failure* failure) {
  bps_transport* t = calloc(1, sizeof *t);
  if (t == NULL) return host->fail(failure, BPS_RESOURCE_EXHAUSTED, "no memory for an endpoint");
  t->log = args->log;
  t->job_key = args->job_key;
  t->epoll = epoll_create1(EPOLL_CLOEXEC);
  t->listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  t->name.sun_family = AF_UNIX;
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number || getrandom(&t->nonce, sizeof t->nonce, 0) < 0) number = 0;
  const int length = snprintf(t->name.sun_path + 1, sizeof t->name.sun_path - 1, "byteps-unix-%ld-%016llx",
                              (long)getpid(), (unsigned long long)number);
  t->name_size = (socklen_t)(sizeof(sa_family_t) + 1 + (size_t)length);
  describe(t->provider, sizeof t->provider);
  if (t->epoll < 0 || t->listener.fd < 0 || !reserve(t, 16) ||
      bind(t->listener.fd, (struct sockaddr*)&t->name, t->name_size) != 0 || listen(t->listener.fd, 4096) != 0) {
    char reason[128];
    snprintf(reason, sizeof reason, "cannot listen on a Unix socket: %s", strerror(errno));
    close_endpoint(t);
    return host->fail(failure, BPS_UNAVAILABLE, reason);
  }
  watch(t, &t->listener, EPOLLIN);
  host->log(t->log, BPS_LOG_INFO, __FILE__, __LINE__, t->provider);
  *out = t;
  return BPS_OK;
}

static void caps(bps_transport* t, bps_transport_caps* out) {
  const bps_transport_caps known = {
      .struct_size = out->struct_size,
      .flags = BPS_TRANSPORT_WAIT_FD | BPS_TRANSPORT_WRITE_ORDERED | BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG,
      .immediate_bits = 32,
      .max_message = kPiece,
      .receive_pool = kPool,
      .tx_depth = kDepth,
      .key_size = sizeof(key),
      .max_transfer = UINT64_C(1) << 40,
      .alignment = 1,
      .provider = t->provider,
  };
  memcpy(out, &known, out->struct_size < sizeof known ? out->struct_size : sizeof known);
}

static int32_t address(bps_transport* t, void* out, size_t* size, bps_failure* failure) {
  (void)failure;
  *size = t->name_size - sizeof(sa_family_t);
  memcpy(out, t->name.sun_path, *size);
  return BPS_OK;
}

static int32_t wait_fd(bps_transport* t) { return t->epoll; }

static int32_t arm(bps_transport* t) { return t->event_count == 0 ? BPS_OK : BPS_TRANSPORT_AGAIN; }

/* ---- The plugin ---- */

static int32_t probe(const void* config, bps_failure* failure) {
  (void)config;
  (void)failure;
  return BPS_OK; /* every Linux has Unix sockets */
}

static const bps_transport_table table = {
    .struct_size = sizeof(bps_transport_table),
    .open = open_endpoint,
    .close = close_endpoint,
    .caps = caps,
    .address = address,
    .connect = connect_peer,
    .disconnect = disconnect,
    .reg = reg,
    .unreg = unreg,
    .export_key = export_key,
    .post_send = post_send,
    .post_write = post_write,
    .poll = poll_events,
    .release = release,
    .wait_fd = wait_fd,
    .arm = arm,
};

static const bps_transport_plugin plugin = {
    .struct_size = sizeof(bps_transport_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_TRANSPORT_ABI_MINOR,
             .kind = "transport",
             .name = "unix",
             .version = "1.0",
             .description = "Unix sockets, between processes of one host (an example)"},
    .probe = probe,
    .table = &table,
};

BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* services, const bps_transport_plugin** out) {
  host = services;
  *out = &plugin;
  return BPS_OK;
}
