/* traffic.c - events, packets, queues: everything that moves bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "unix_transport.h"

/* ---- Events ---- */

bool reserve(bps_transport* t, size_t more) {
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

bps_event* push(bps_transport* t, uint32_t type, bps_peer number, int32_t code) {
  bps_event* event = &t->events[(t->event_first + t->event_count++) % t->event_capacity];
  memset(event, 0, sizeof *event);
  event->type = type;
  event->peer = number;
  event->code = code;
  return event;
}

/* ---- Connections ---- */

void watch(bps_transport* t, connection* c, uint32_t interest) {
  struct epoll_event event = {.events = interest, .data.ptr = c};
  if (epoll_ctl(t->epoll, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event) == 0) c->watched = true;
}

static void unwatch(bps_transport* t, connection* c) {
  if (c->watched) epoll_ctl(t->epoll, EPOLL_CTL_DEL, c->fd, NULL);
  c->watched = false;
}

void shut(bps_transport* t, connection* c) {
  if (c->fd < 0) return;
  unwatch(t, c);
  close(c->fd);
  c->fd = -1;
}

void drop_connection(bps_transport* t, connection* c) {
  if (c == NULL) return;
  shut(t, c);
  free(c);
}

/* ---- Peers ---- */

peer* find(bps_transport* t, bps_peer number) {
  peer* p = t->peers;
  while (p != NULL && p->number != number) p = p->next;
  return p;
}

void finish(bps_transport* t, peer* p, operation** at, int32_t code) {
  operation* op = *at;
  *at = op->next;
  if (*at == NULL) p->end = at;
  --p->depth;
  --t->owed;
  push(t, op->event, p->number, code)->user = op->user;
  free(op);
}

void cut(bps_transport* t, peer* p, int32_t code) {
  while (p->first != NULL) finish(t, p, &p->first, code);
  shut(t, &p->out);
  drop_connection(t, p->in);
  p->in = NULL;
}

void lose(bps_transport* t, peer* p, const char* why) {
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

int send_packet(const peer* p, const packet* head, const void* data) {
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

int32_t post_send(bps_transport* t, bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > kPiece) return BPS_INVALID_ARGUMENT;
  const operation op = {.head = {.type = MESSAGE}, .event = BPS_EVENT_SENT, .user = user, .from = data, .left = size};
  return post(t, number, &op, true);
}

int32_t post_write(bps_transport* t, bps_peer number, const bps_local* from, size_t size, const bps_remote* to,
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

void adopt(bps_transport* t, peer* p, connection* c) {
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

size_t poll_events(bps_transport* t, bps_event* events, size_t capacity) {
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

void release(bps_transport* t, uint64_t number) {
  lease* kept = (lease*)(uintptr_t)number;
  peer* p = find(t, kept->number);
  if (p != NULL) --p->unreleased;
  *kept->back = kept->next;
  if (kept->next != NULL) kept->next->back = kept->back;
  free(kept);
}
