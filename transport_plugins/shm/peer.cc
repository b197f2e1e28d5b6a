#include "transport_plugins/shm/peer.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/shm/process_memory.h"

namespace byteps::shm {
namespace {

// Copied in one go, and in one call of Progress: other peers wait no longer than this takes.
constexpr uint64_t kBlock = 256 * 1024;
constexpr uint64_t kBudget = 512 * 1024;

uint64_t LedgerWord(uint64_t secret) { return secret >> 16 << 16; }

}  // namespace

Peer::Peer(Context* context, const bps_connect_args& args, const Address& address, std::shared_ptr<Channel> outgoing)
    : context_(context),
      number_(args.peer),
      name_(args.name == nullptr ? "" : args.name),
      address_(address),
      called_(args.local_id),
      outgoing_(std::move(outgoing)) {
  // The last freed is the first used: it is in the caches.
  for (uint32_t i = kSlots; i-- > 0;) free_slots_.push_back(i);
  for (uint32_t i = kOperations; i-- > 0;) free_operations_.push_back(i);
  operations_.resize(kOperations);
}

void Peer::Connected(UniqueFd bell, std::shared_ptr<Channel> incoming, std::shared_ptr<Remote> remote) {
  bell_ = std::move(bell);
  incoming_ = std::move(incoming);
  remote_ = std::move(remote);
  state = PeerState::kConnected;
}

// ---- Posting ----

void Peer::Describe(Descriptor::Kind kind, uint32_t index, uint32_t size) {
  ChannelMemory& memory = outgoing_->memory();
  memory.descriptors[head_ % kDescriptors] = {kind, index, size, 0};
  memory.header.head.store(++head_);
  Wake();
}

void Peer::Wake() {
  if (!bell_) return;
  ChannelHeader& header = outgoing_->memory().header;
  if (header.sleeping.load() != 0 && header.sleeping.exchange(0) != 0) ::eventfd_write(bell_.get(), 1);
}

void Peer::CollectReturns() {
  ChannelMemory& memory = outgoing_->memory();
  const uint32_t returned = memory.header.returned.load();
  if (returned - returned_ > kSlots) return Violation("more slots given back than there are");
  while (returned_ != returned) {
    const uint32_t slot = CopyOnce(memory.returns[returned_ % kSlots]);
    if (slot >= kSlots || !used_slots_.test(slot)) return Violation("gave back a slot that it did not have");
    ++returned_;
    used_slots_.reset(slot);
    free_slots_.push_back(slot);
  }
}

int32_t Peer::Send(const void* data, size_t size, uint64_t user) {
  if (free_slots_.empty()) CollectReturns();
  if (free_slots_.empty()) {
    outgoing_->memory().header.room_wanted.store(1);
    room_wanted_ = true;
    CollectReturns();  // the last one may have come back before it could see that
    if (free_slots_.empty()) return BPS_TRANSPORT_AGAIN;
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  used_slots_.set(slot);
  std::memcpy(outgoing_->memory().slots[slot], data, size);
  context_->events.Add(BPS_EVENT_SENT, number_).user = user;
  Describe(Descriptor::kMessage, slot, static_cast<uint32_t>(size));
  return BPS_OK;
}

int32_t Peer::Post(uint32_t kind, Region* region, void* base, size_t size, const Key& key, uint64_t offset,
                   uint32_t immediate, uint64_t user) {
  if (free_operations_.empty()) Reap();
  if (free_operations_.empty()) return BPS_TRANSPORT_AGAIN;
  const uint32_t index = free_operations_.back();
  free_operations_.pop_back();
  Operation& operation = operations_[index];
  operation = {};
  operation.user = user;
  operation.region = region;
  operation.base = static_cast<std::byte*>(base);
  operation.size = size;
  operation.kind = kind;
  operation.sequence = ++sequence_;
  RequestBody body{};
  body.kind = kind;
  body.sequence = operation.sequence;
  body.immediate = immediate;
  body.address = reinterpret_cast<uint64_t>(base);
  if (const Region* shared = kind == Request::kWrite ? context_->regions.FindShared(base, size) : nullptr) {
    const auto grant = shared->grants.find(number_);
    if (grant != shared->grants.end() && grant->second.shown) {
      body.shared_region = shared->number;
      body.shared_offset = static_cast<uint64_t>(operation.base - shared->base);
    }
  }
  body.size = size;
  body.offset = offset;
  body.key = key;
  Request& request = outgoing_->memory().requests[index];
  request.body = body;
  request.state.store(Request::kPosted, std::memory_order_release);
  outstanding_.push_back(index);
  Describe(Descriptor::kOperation, index, 0);
  return BPS_OK;
}

int32_t Peer::Write(Region* region, void* base, size_t size, const Key& key, uint64_t offset, uint32_t immediate,
                    uint64_t user) {
  return Post(Request::kWrite, region, base, size, key, offset, immediate, user);
}

int32_t Peer::Read(Region* region, void* base, size_t size, const Key& key, uint64_t offset, uint64_t user) {
  if (reads_.size() >= kOperations) return BPS_TRANSPORT_AGAIN;
  reads_.push_back({user, region, static_cast<std::byte*>(base), size, offset, 0, key});
  return BPS_OK;
}

// ---- Progress ----

void Peer::Progress() {
  Receive();
  FetchChunks();
  PullSome();
  ReadSome();
  Reap();
  FeedSome();
}

void Peer::Receive() {
  ChannelMemory& memory = incoming_->memory();
  const uint32_t head = memory.header.head.load(std::memory_order_acquire);
  if (head == tail_) return;
  if (head - tail_ > kDescriptors) return Violation("a ring that is fuller than it can be");
  while (tail_ != head) {
    const Descriptor descriptor = CopyOnce(memory.descriptors[tail_ % kDescriptors]);
    ++tail_;
    if (descriptor.kind == Descriptor::kOperation && descriptor.index < kOperations) {
      TakeRequest(descriptor.index);
      continue;
    }
    if (descriptor.kind != Descriptor::kMessage || descriptor.index >= kSlots || leased_.test(descriptor.index) ||
        descriptor.size == 0 || descriptor.size > kMaxMessage) {
      return Violation("an invalid descriptor");
    }
    leased_.set(descriptor.index);
    bps_event& event = context_->events.Add(BPS_EVENT_MESSAGE, number_);
    event.data = memory.slots[descriptor.index];
    event.size = descriptor.size;
    event.lease = uint64_t{number_} << 32 | descriptor.index;
  }
  memory.header.tail.store(tail_, std::memory_order_release);
}

void Peer::Release(uint32_t slot) {
  if (slot >= kSlots || !leased_.test(slot)) {
    return BPS_SHM_LOG(context_->host, ERROR, "release of a message that is not on loan");
  }
  leased_.reset(slot);
  ChannelMemory& memory = incoming_->memory();
  memory.returns[gave_back_ % kSlots] = slot;
  memory.header.returned.store(++gave_back_);
  if (connected() && memory.header.room_wanted.load() != 0 && memory.header.room_wanted.exchange(0) != 0) Wake();
}

void Peer::TakeRequest(uint32_t index) {
  const Request& request = incoming_->memory().requests[index];
  if (request.state.load(std::memory_order_acquire) == Request::kCancelled) {
    Settle(index, Request::kPosted, Request::kDone, BPS_OK);
    return;
  }
  const RequestBody body = CopyOnce(request.body);
  if (body.kind != Request::kRead && body.kind != Request::kWrite) return Violation("an invalid request");
  // Of each number one request is under way: a number that is announced again and again fills no memory of ours. (Feeds
  // are of our own writes, too, also of some that have ended.)
  if (pulls_.size() >= kOperations || feeds_.size() >= 4 * kOperations)
    return Violation("more requests than there are");
  if (body.kind == Request::kRead) {
    feeds_.push_back({Request::kRead, index, body.sequence, body.size, body.offset, 0, body.key});
    return;
  }
  pulls_.push_back({index, body.sequence, body.immediate, false, body.address, body.shared_region, body.shared_offset,
                    body.size, body.offset, 0, body.key});
  if (!remote_->readable() && body.shared_region == 0 && body.size != 0) Stage(&pulls_.back());
}

Region* Peer::Target(const Key& key, uint64_t offset, uint64_t size) const {
  Region* region = context_->regions.FindGranted(key.region, key.secret, number_);
  if (region == nullptr || offset > region->size || size > region->size - offset) return nullptr;
  return region;
}

bool Peer::Settle(uint32_t index, uint32_t from, Request::State to, int32_t code) {
  ChannelMemory& memory = incoming_->memory();
  Request& request = memory.requests[index];
  request.code.store(code, std::memory_order_relaxed);
  uint32_t expected = from;
  const bool settled = request.state.compare_exchange_strong(expected, to);
  // Cancelled meanwhile: this says that it was seen.
  if (!settled) request.state.store(Request::kFailed);
  memory.header.completed.store(++settled_);
  Wake();
  return settled;
}

void Peer::Stage(Pull* pull) {
  pull->staged = true;
  pull->done = 0;
  uint32_t expected = Request::kPosted;
  ChannelMemory& memory = incoming_->memory();
  memory.requests[pull->index].state.compare_exchange_strong(expected, Request::kStaged);
  memory.header.completed.store(++settled_);
  Wake();
}

void Peer::Landed(const Pull& pull) {
  bps_event& event = context_->events.Add(BPS_EVENT_IMMEDIATE, number_);
  event.immediate = pull.immediate;
}

std::string Peer::Who() const {
  if (!name_.empty()) return name_;
  return "peer " + std::to_string(number_) +
         (remote_ == nullptr ? "" : " (process " + std::to_string(remote_->pid()) + ")");
}

void Peer::OnRefused(int error) {
  remote_->SetReadable(false);
  if (!std::exchange(context_->refusal_logged, true)) {
    BPS_SHM_LOG(context_->host, INFO,
                std::string("the memory of other processes of this host cannot be read directly (process_vm_readv: ") +
                    std::strerror(error) + "); payloads go through shared memory, which costs a copy more");
  }
  for (Pull& pull : pulls_) {
    if (!pull.staged && pull.shared_region == 0) Stage(&pull);
  }
}

void Peer::PullSome() {
  uint64_t budget = kBudget;
  while (!pulls_.empty() && budget > 0) {
    Pull& pull = pulls_.front();
    const auto end = [&](Request::State how, int32_t code) {
      const bool settled = Settle(pull.index, Request::kPosted, how, code);
      if (settled && how == Request::kDone) Landed(pull);
      pulls_.pop_front();
    };
    if (incoming_->memory().requests[pull.index].state.load(std::memory_order_relaxed) == Request::kCancelled) {
      end(Request::kFailed, BPS_CANCELLED);
      continue;
    }
    if (pull.staged) return;  // it comes by itself
    Region* target = Target(pull.key, pull.offset, pull.size);
    if (target == nullptr) {
      end(Request::kFailed, BPS_NOT_FOUND);
      continue;
    }
    const uint64_t bytes = std::min({pull.size - pull.done, kBlock, budget});
    if (bytes != 0) {
      const int error = remote_->Fetch(pull.shared_region, pull.shared_offset + pull.done, pull.address + pull.done,
                                       target->base + pull.offset + pull.done, bytes);
      if (Refused(error)) {
        OnRefused(error);
        if (!pull.staged) Stage(&pull);
        return;
      }
      if (error == ESRCH) {
        process_ended_ = true;
        return;
      }
      if (error != 0) {
        end(Request::kFailed, BPS_INVALID_ARGUMENT);
        continue;
      }
      pull.done += bytes;
      budget -= bytes;
    }
    if (pull.done < pull.size) continue;
    // Was it really read from that process, and not from one that has its number now?
    if (pull.size != 0 && pull.shared_region == 0 && remote_->Ended()) {
      process_ended_ = true;
      return;
    }
    end(Request::kDone, BPS_OK);
  }
}

void Peer::FetchChunks() {
  ChannelMemory& memory = incoming_->memory();
  const uint32_t staged = memory.header.staged.load(std::memory_order_acquire);
  if (staged == fetched_) return;
  if (staged - fetched_ > kStagingChunks) return Violation("more chunks than there are");
  for (; fetched_ != staged; ++fetched_) {
    const Chunk chunk = CopyOnce(memory.chunks[fetched_ % kStagingChunks]);
    const std::byte* bytes = memory.staging[fetched_ % kStagingChunks];
    if (chunk.bytes > kStagingBytes || chunk.index >= kOperations) return Violation("an invalid chunk");
    if (chunk.kind == Request::kRead) {
      Operation& operation = operations_[chunk.index];
      if (operation.ended || operation.kind != Request::kRead || operation.sequence != chunk.sequence) continue;
      if (chunk.offset != operation.done || chunk.bytes > operation.size - operation.done) {
        return Violation("an answer to a read that does not fit");
      }
      std::memcpy(operation.base + operation.done, bytes, chunk.bytes);
      operation.done += chunk.bytes;
      if (operation.done == operation.size) EndOperation(chunk.index, BPS_OK);
      rescan_ = true;
      continue;
    }
    const auto pull = std::find_if(pulls_.begin(), pulls_.end(), [&](const Pull& each) {
      return each.staged && each.index == chunk.index && each.sequence == chunk.sequence;
    });
    if (pull == pulls_.end()) continue;  // of a write that was cancelled
    Region* target = Target(pull->key, pull->offset, pull->size);
    const bool fits = chunk.offset == pull->done && chunk.bytes <= pull->size - pull->done;
    if (target != nullptr && fits) {
      std::memcpy(target->base + pull->offset + pull->done, bytes, chunk.bytes);
      pull->done += chunk.bytes;
      if (pull->done < pull->size) continue;
    }
    const bool whole = target != nullptr && fits;
    const bool settled = Settle(pull->index, Request::kStaged, whole ? Request::kDone : Request::kFailed,
                                whole ? BPS_OK : BPS_NOT_FOUND);
    if (settled && whole) Landed(*pull);
    pulls_.erase(pull);
  }
  memory.header.fetched.store(fetched_);
  Wake();
}

void Peer::FeedSome() {
  ChannelMemory& memory = outgoing_->memory();
  bool fed = false;
  while (!feeds_.empty() && staged_ - memory.header.fetched.load(std::memory_order_acquire) < kStagingChunks) {
    Feed& feed = feeds_.front();
    const std::byte* source = nullptr;
    if (feed.kind == Request::kWrite) {
      const Operation& operation = operations_[feed.index];
      if (operation.ended || operation.sequence != feed.sequence) {
        feeds_.pop_front();
        continue;
      }
      source = operation.base;
    } else {
      const bool cancelled = incoming_->memory().requests[feed.index].state.load() == Request::kCancelled;
      const Region* region = Target(feed.key, feed.offset, feed.size);
      if (cancelled || region == nullptr) {
        Settle(feed.index, Request::kPosted, Request::kFailed, BPS_NOT_FOUND);
        feeds_.pop_front();
        continue;
      }
      source = region->base + feed.offset;
    }
    const uint32_t place = staged_ % kStagingChunks;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(feed.size - feed.done, kStagingBytes));
    std::memcpy(memory.staging[place], source + feed.done, bytes);
    memory.chunks[place] = {feed.kind, feed.index, feed.sequence, bytes, feed.done};
    memory.header.staged.store(++staged_);
    fed = true;
    feed.done += bytes;
    if (feed.done < feed.size) continue;
    if (feed.kind == Request::kRead) Settle(feed.index, Request::kPosted, Request::kDone, BPS_OK);
    feeds_.pop_front();
  }
  if (fed) Wake();
}

void Peer::ReadSome() {
  uint64_t budget = kBudget;
  while (!reads_.empty() && budget > 0) {
    LocalRead& read = reads_.front();
    const uint64_t bytes = std::min({read.size - read.done, kBlock, budget});
    const int32_t code =
        bytes == 0 ? BPS_OK : remote_->CopyFrom(read.key, read.offset + read.done, read.base + read.done, bytes);
    if (code == BPS_UNIMPLEMENTED) {
      // Its owner brings it.
      const LocalRead again = read;
      if (free_operations_.empty()) return;
      reads_.pop_front();
      Post(Request::kRead, const_cast<Region*>(again.region), again.base, again.size, again.key, again.offset, 0,
           again.user);
      continue;
    }
    read.done += bytes;
    budget -= bytes;
    if (code == BPS_OK && read.done < read.size) continue;
    context_->events.Add(BPS_EVENT_READ, number_, code).user = read.user;
    reads_.pop_front();
  }
}

void Peer::EndOperation(uint32_t index, int32_t code) {
  Operation& operation = operations_[index];
  if (std::exchange(operation.ended, true)) return;
  context_->events.Add(operation.kind == Request::kWrite ? BPS_EVENT_WRITTEN : BPS_EVENT_READ, number_, code).user =
      operation.user;
}

void Peer::Reap() {
  ChannelMemory& memory = outgoing_->memory();
  const uint32_t completed = memory.header.completed.load(std::memory_order_acquire);
  if (completed == completed_ && !rescan_) return;
  completed_ = completed;
  rescan_ = false;
  size_t kept = 0;
  for (const uint32_t index : outstanding_) {
    Operation& operation = operations_[index];
    Request& request = memory.requests[index];
    const uint32_t now = request.state.load(std::memory_order_acquire);
    if (now == Request::kStaged && operation.kind == Request::kWrite && !operation.feeding) {
      operation.feeding = true;
      feeds_.push_back({Request::kWrite, index, operation.sequence, operation.size, 0, 0, {}});
    }
    bool over = now == Request::kDone || now == Request::kFailed;
    if (over && now == Request::kFailed) {
      const int32_t code = request.code.load(std::memory_order_relaxed);
      EndOperation(index, code == BPS_OK ? BPS_UNKNOWN : code);
    } else if (over && operation.kind == Request::kWrite) {
      EndOperation(index, BPS_OK);
    } else if (over && !operation.ended) {
      over = false;  // the last bytes of a read are still in the staging
    }
    if (over) {
      request.state.store(Request::kFree, std::memory_order_relaxed);
      free_operations_.push_back(index);
    } else {
      outstanding_[kept++] = index;
    }
  }
  outstanding_.resize(kept);
}

// ---- Sleeping ----

void Peer::Sleep() { incoming_->memory().header.sleeping.store(1); }
void Peer::Awake() { incoming_->memory().header.sleeping.store(0, std::memory_order_relaxed); }

bool Peer::Quiet() const {
  const ChannelHeader& theirs = incoming_->memory().header;
  const ChannelHeader& ours = outgoing_->memory().header;
  if (theirs.head.load() != tail_ || theirs.staged.load() != fetched_ || ours.completed.load() != completed_) {
    return false;
  }
  if (rescan_) return false;
  if (!pulls_.empty()) {
    const Pull& pull = pulls_.front();
    if (!pull.staged || incoming_->memory().requests[pull.index].state.load() == Request::kCancelled) return false;
  }
  if (!reads_.empty() && !free_operations_.empty()) return false;
  if (!feeds_.empty() && staged_ - ours.fetched.load() < kStagingChunks) return false;
  return !(room_wanted_ && ours.returned.load() != returned_);
}

// ---- Ending ----

void Peer::Cancel(const Region* region) {
  for (const uint32_t index : outstanding_) {
    Operation& operation = operations_[index];
    if (operation.ended || operation.region != region) continue;
    Request& request = outgoing_->memory().requests[index];
    uint32_t found = request.state.load();
    while (found == Request::kPosted || found == Request::kStaged) {
      if (request.state.compare_exchange_weak(found, Request::kCancelled)) break;
    }
    // A read's bytes come by us alone: from here on they are dropped.
    const bool done = found == Request::kDone && operation.kind == Request::kWrite;
    EndOperation(index, done ? BPS_OK : BPS_CANCELLED);
    rescan_ = true;
  }
  if (rescan_) Wake();
  for (size_t i = 0; i < reads_.size();) {
    if (reads_[i].region != region) {
      ++i;
      continue;
    }
    context_->events.Add(BPS_EVENT_READ, number_, BPS_CANCELLED).user = reads_[i].user;
    reads_.erase(reads_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Peer::EndAll(int32_t code) {
  if (remote_ != nullptr) remote_->Stop();
  for (const uint32_t index : outstanding_) {
    Request& request = outgoing_->memory().requests[index];
    // A peer that is just carrying it out finds that it does not count any more.
    const uint32_t found = request.state.exchange(Request::kCancelled);
    EndOperation(index, found == Request::kDone && operations_[index].kind == Request::kWrite ? BPS_OK : code);
  }
  outstanding_.clear();
  for (const LocalRead& read : reads_) context_->events.Add(BPS_EVENT_READ, number_, code).user = read.user;
  reads_.clear();
  pulls_.clear();
  feeds_.clear();
}

uint32_t Peer::NewLedgerEntry(uint64_t secret) {
  uint32_t entry = kNoEntry;
  if (!free_entries_.empty()) {
    entry = free_entries_.back();
    free_entries_.pop_back();
  } else if (next_entry_ < kLedger) {
    entry = next_entry_++;
  } else {
    return kNoEntry;
  }
  outgoing_->memory().ledger[entry].store(LedgerWord(secret));
  return entry;
}

void Peer::FreeLedgerEntry(uint32_t entry) {
  if (entry != kNoEntry) free_entries_.push_back(entry);
}

void Peer::Revoke(const Grant& grant) {
  if (grant.entry != kNoEntry) outgoing_->memory().ledger[grant.entry].fetch_and(kLedgerUsers);
}

uint64_t Peer::Users(const Grant& grant) const {
  return grant.entry == kNoEntry ? 0 : outgoing_->memory().ledger[grant.entry].load() & kLedgerUsers;
}

void Peer::RevokeAll() {
  for (uint32_t entry = 0; entry < next_entry_; ++entry) outgoing_->memory().ledger[entry].fetch_and(kLedgerUsers);
}

bool Peer::UsesLedger() const {
  for (uint32_t entry = 0; entry < next_entry_; ++entry) {
    if ((outgoing_->memory().ledger[entry].load() & kLedgerUsers) != 0) return true;
  }
  return false;
}

// ---- Life ----

bool Peer::Busy() const {
  return !outstanding_.empty() || outgoing_->memory().header.tail.load(std::memory_order_relaxed) != head_;
}

uint64_t Peer::ProgressCount() const {
  const ChannelHeader& header = outgoing_->memory().header;
  uint64_t staged = fetched_;
  for (const uint32_t index : outstanding_) staged += operations_[index].done;
  return staged + header.tail.load(std::memory_order_relaxed) + header.completed.load(std::memory_order_relaxed) +
         header.fetched.load(std::memory_order_relaxed);
}

void Peer::Violation(const std::string& what) {
  if (violation_.empty()) violation_ = "sent " + what;
}

}  // namespace byteps::shm
