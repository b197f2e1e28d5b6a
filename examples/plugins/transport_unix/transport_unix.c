/* transport_unix.c - a transport plugin in plain C11: Unix sockets, for processes of one host.
 *
 *     cc -std=c11 -Wall -Wextra -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags byteps) transport_unix.c \
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
 * when poll() finds room. The receiver reads a piece straight to its place, or drops it when the region is gone: that is
 * the fence of unreg. A closed socket is the fence of disconnect, and the news of a peer's death. */
#define _GNU_SOURCE
#include <byteps/transport.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

static const bps_plugin_host* host;

/* ---- Events ---- */

/* Room for `more` events, beside those that are owed: ends of operations, and two for each peer. */
static bool reserve(bps_transport* t, size_t more) {
  const size_t needed = t->event_count + t->owed + more;
  if (needed <= t->event_capacity) return true;
  bps_event* events = malloc(2 * needed * sizeof *events);
  if (events == NULL) return false;
  for (size_t i = 0; i < t->event_count; ++i) events[i] = t->events[(t->event_first + i) % t->event_capacity];
  free(t->events);
  t->events = events;
  t->event_first = 0;
  t->event_capacity = 2 * needed;
  return true;
}

static bps_event* push(bps_transport* t, uint32_t type, bps_peer number, int32_t code) {
  bps_event* event = &t->events[(t->event_first + t->event_count++) % t->event_capacity];
  memset(event, 0, sizeof *event);
  event->type = type;
  event->peer = number;
  event->code = code;
  return event;
}

/* ---- Connections ---- */

static void watch(bps_transport* t, connection* c, uint32_t interest) {
  struct epoll_event event = {.events = interest, .data.ptr = c};
  if (epoll_ctl(t->epoll, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event) == 0) c->watched = true;
}

static void unwatch(bps_transport* t, connection* c) {
  if (c->watched) epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
  c->watched = false;
}

static void shut(bps_transport* t, connection* c) {
  if (c->fd < 0) return;
  unwatch(t, c);
  close(c->fd);
  c->fd = -1;
}

static void drop_connection(bps_transport* t, connection* c) {
  if (c == NULL) return;
  shut(t, c);
  free(c);
}

/* ---- Peers ---- */

static peer* find(bps_transport* t, bps_peer number) {
  peer* p = t->peers;
  while (p != NULL && p->number != number) p = p->next;
  return p;
}

/* The operation at `at` is over. */
static void finish(bps_transport* t, peer* p, operation** at, int32_t code) {
  operation* op = *at;
  *at = op->next;
  if (*at == NULL) p->end = at;
  --p->depth;
  --t->owed;
  push(t, op->event, p->number, code)->user = op->user;
  free(op);
}

/* Ends its operations and connections: nothing of it lands any more. */
static void cut(bps_transport* t, peer* p, int32_t code) {
  while (p->first != NULL) finish(t, p, &p->first, code);
  shut(t, &p->out);
  drop_connection(t, p->in);
  p->in = NULL;
}

static void lose(bps_transport* t, peer* p, const char* why) {
  if (p->down) return;
  p->down = true;
  cut(t, p, BPS_UNAVAILABLE);
  bps_event* event = push(t, BPS_EVENT_PEER_DOWN, p->number, BPS_UNAVAILABLE);
#if BPS_TRANSPORT_ABI_MINOR >= 1 /* 1.0 had no place for the reason */
  event->data = why;
  event->size = strlen(why);
#else
  (void)event;
#endif
  char text[128];
  snprintf(text, sizeof text, "peer %u %s", p->number, why);
  host->log(t->log, BPS_LOG_INFO, __FILE__, __LINE__, text);
}

/* ---- Sending ---- */

/* 1: it has left; 0: no room; -1: the connection is broken. */
static int send_packet(const peer* p, const packet* head, const void* data) {
  struct iovec parts[2] = {{(void*)(uintptr_t)head, sizeof *head}, {(void*)(uintptr_t)data, head->size}};
  const struct msghdr message = {.msg_iov = parts, .msg_iovlen = head->size == 0 ? 1 : 2};
  while (true) {
    if (sendmsg(p->out.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 1;
    if (errno != EINTR) return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
  }
}

/* Sends what waits, until the socket is full. */
static void flush(bps_transport* t, peer* p) {
  while (p->first != NULL && !p->blocked) {
    operation* op = p->first;
    packet head = op->head;
    head.size = (uint32_t)(op->left < kPiece ? op->left : kPiece);
    head.last = head.size == op->left;
    const int left = send_packet(p, &head, op->from);
    /* A broken connection is seen by epoll too, once the peer's last words have been read. */
    if (left < 0) break;
    if (left == 0) {
      p->blocked = true;
      watch(t, &p->out, EPOLLIN | EPOLLOUT);
      break;
    }
    op->from += head.size;
    op->left -= head.size;
    op->head.offset += head.size;
    if (op->left == 0) finish(t, p, &p->first, BPS_OK);
  }
}

/* `copy`: the data must be copied if it cannot leave at once. */
static int32_t post(bps_transport* t, bps_peer number, const operation* wanted, bool copy) {
  peer* p = find(t, number);
  if (p == NULL) return BPS_INVALID_ARGUMENT;
  if (p->down) return BPS_UNAVAILABLE;
  if (p->depth >= kDepth) return BPS_TRANSPORT_AGAIN;
  operation* op = malloc(sizeof *op + (copy ? wanted->left : 0));
  if (op == NULL || !reserve(t, 1)) {
    free(op);
    return BPS_RESOURCE_EXHAUSTED;
  }
  *op = *wanted;
  if (copy) op->from = memcpy(op->copy, wanted->from, wanted->left);
  *p->end = op;
  p->end = &op->next;
  ++t->owed;
  if (++p->depth == 1) flush(t, p);
  return BPS_OK;
}

static int32_t post_send(bps_transport* t, bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > kPiece) return BPS_INVALID_ARGUMENT;
  const operation op = {.head = {.type = MESSAGE}, .event = BPS_EVENT_SENT, .user = user, .from = data, .left = size};
  return post(t, number, &op, true);
}

static int32_t post_write(bps_transport* t, bps_peer number, const bps_local* from, size_t size, const bps_remote* to,
                          uint32_t immediate, uint64_t user) {
  key where;
  if (to->key_size != sizeof where) return BPS_INVALID_ARGUMENT;
  memcpy(&where, to->key, sizeof where);
  const operation op = {
      .head = {.type = WRITE, .immediate = immediate, .nonce = where.nonce, .slot = where.slot, .offset = to->offset},
      .event = BPS_EVENT_WRITTEN,
      .user = user,
      .region = from->region,
      .from = from->base,
      .left = size};
  return post(t, number, &op, false);
}

/* ---- Receiving ---- */

/* Where a piece belongs; NULL: the region is gone. *wrong: no honest peer sends that. */
static char* place_of(const bps_transport* t, const packet* head, bool* wrong) {
  if (head->slot >= t->region_count) return NULL;
  const bps_region* region = t->regions[head->slot];
  if (region == NULL || region->nonce != head->nonce) return NULL;
  *wrong = head->offset > region->size || head->size > region->size - head->offset;
  return *wrong ? NULL : region->base + head->offset;
}

static void take_message(bps_transport* t, peer* p, const packet* head, lease* kept) {
  kept->number = p->number;
  kept->next = t->leases;
  kept->back = &t->leases;
  if (t->leases != NULL) t->leases->back = &kept->next;
  t->leases = kept;
  ++p->unreleased;
  bps_event* event = push(t, BPS_EVENT_MESSAGE, p->number, BPS_OK);
  event->data = kept->data;
  event->size = head->size;
  event->lease = (uint64_t)(uintptr_t)kept;
}

/* Reads one packet of a known peer. False: there is none, or the peer is lost. */
static bool receive(bps_transport* t, peer* p) {
  packet head;
  ssize_t got = recv(p->in->fd, &head, sizeof head, MSG_DONTWAIT | MSG_PEEK);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (!reserve(t, 1)) return false; /* no memory: the packet stays where it is */
  if (got <= 0) {
    lose(t, p, got == 0 ? "closed its connection" : "broke its connection");
    return false;
  }
  char* place = NULL;
  lease* kept = NULL;
  bool wrong = got != sizeof head || head.size > kPiece || (head.type != MESSAGE && head.type != WRITE);
  if (!wrong && head.type == WRITE) place = place_of(t, &head, &wrong);
  if (!wrong && head.type == MESSAGE) {
    if (p->unreleased >= kPool) {
      lose(t, p, "sent more messages than fit into its receive pool");
      return false;
    }
    kept = malloc(sizeof *kept + head.size);
    if (kept == NULL) return false;
    place = kept->data;
  }
  /* What has no place is dropped with its packet: the rest of a packet that is not read is gone. */
  struct iovec parts[2] = {{&head, sizeof head}, {place, place == NULL ? 0 : head.size}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  got = wrong ? -1 : recvmsg(p->in->fd, &message, MSG_DONTWAIT);
  if (got < 0 || (place != NULL && (size_t)got != sizeof head + head.size)) {
    free(kept);
    lose(t, p, "sent what no peer sends");
    return false;
  }
  if (kept != NULL) {
    take_message(t, p, &head, kept);
  } else if (place != NULL && head.last != 0) {
    push(t, BPS_EVENT_IMMEDIATE, p->number, BPS_OK)->immediate = head.immediate;
  }
  return true;
}

static void adopt(bps_transport* t, peer* p, connection* c) {
  p->in = c;
  c->owner = p;
  watch(t, c, EPOLLIN);
}

/* The first packet of a caller: whose connection it is. */
static void greet(bps_transport* t, connection* c) {
  packet head = {0};
  const ssize_t got = recv(c->fd, &head, sizeof head, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  connection** at = &t->waiting;
  while (*at != c) at = &(*at)->next;
  peer* p = find(t, head.immediate);
  const bool ours = got == sizeof head && head.type == HELLO && head.nonce == t->job_key;
  if (ours && p == NULL) { /* its owner has not been told of it yet: nothing is read until then */
    c->number = head.immediate;
    unwatch(t, c);
    return;
  }
  *at = c->next;
  --t->waiting_count;
  if (ours && !p->down && p->in == NULL) {
    adopt(t, p, c);
  } else {
    drop_connection(t, c);
  }
}

/* Takes the callers in; those of other users are sent away. */
static void take_callers(bps_transport* t) {
  int fd;
  while ((fd = accept4(t->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    struct ucred caller;
    socklen_t size = sizeof caller;
    connection* c = NULL;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &size) == 0 && caller.uid == geteuid() &&
        t->waiting_count < kWaiting) {
      c = calloc(1, sizeof *c);
    }
    if (c == NULL) {
      close(fd);
      continue;
    }
    c->fd = fd;
    c->incoming = true;
    c->number = BPS_PEER_UNKNOWN;
    c->next = t->waiting;
    t->waiting = c;
    ++t->waiting_count;
    watch(t, c, EPOLLIN);
    greet(t, c);
  }
}

/* One descriptor has something. `room`: packets that may be read. */
static void serve(bps_transport* t, connection* c, uint32_t what, size_t* room) {
  if (c == &t->listener) {
    take_callers(t);
  } else if (c->owner == NULL) {
    greet(t, c);
  } else if (c->incoming) {
    peer* p = c->owner;
    while (*room > 0 && receive(t, p)) --*room;
  } else if ((what & (EPOLLHUP | EPOLLERR)) != 0) {
    peer* p = c->owner;
    take_callers(t); /* what it has sent comes before the news of its end */
    unwatch(t, c);
    if (p->in == NULL) lose(t, p, "closed its connection");
  } else if ((what & EPOLLOUT) != 0) {
    peer* p = c->owner;
    p->blocked = false;
    watch(t, c, EPOLLIN);
    flush(t, p);
  }
}

static size_t poll_events(bps_transport* t, bps_event* events, size_t capacity) {
  size_t room = capacity;
  for (int i = 0; i < kWakeups && t->event_count < capacity && room > 0; ++i) {
    struct epoll_event ready; /* one at a time: what it leads to may free what another one points to */
    if (epoll_wait(t->epoll, &ready, 1, 0) != 1) break;
    serve(t, ready.data.ptr, ready.events, &room);
  }
  const size_t count = t->event_count < capacity ? t->event_count : capacity;
  for (size_t i = 0; i < count; ++i) events[i] = t->events[(t->event_first + i) % t->event_capacity];
  if (count > 0) t->event_first = (t->event_first + count) % t->event_capacity;
  t->event_count -= count;
  return count;
}

static void release(bps_transport* t, uint64_t number) {
  lease* kept = (lease*)(uintptr_t)number;
  peer* p = find(t, kept->number);
  if (p != NULL) --p->unreleased;
  *kept->back = kept->next;
  if (kept->next != NULL) kept->next->back = kept->back;
  free(kept);
}

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
  /* On one host this succeeds or fails at once: whoever has an address listens. */
  const packet hello = {.type = HELLO, .immediate = args->local_id, .nonce = t->job_key};
  if (connect(p->out.fd, (struct sockaddr*)&name, (socklen_t)(sizeof(sa_family_t) + args->address_size)) != 0 ||
      send_packet(p, &hello, NULL) != 1) {
    lose(t, p, "cannot be reached: nobody listens at its address; is it on this host, and alive?");
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
