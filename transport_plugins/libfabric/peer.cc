#include "transport_plugins/libfabric/peer.h"

#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <algorithm>
#include <utility>

namespace byteps::fabric {

const char* Name(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "connecting";
    case PeerState::kConnected:
      return "connected";
    case PeerState::kDown:
      return "down";
  }
  return "?";
}

Peer::Peer(Endpoint& endpoint, const bps_connect_args& args, uint32_t depth)
    : endpoint_(endpoint),
      number_(args.peer),
      local_id_(args.local_id),
      depth_(depth),
      sends_(depth, sizeof(Announcement) + kMaxMessage),
      receives_(endpoint.provider().receives(), sizeof(Announcement) + kMaxMessage),
      receive_(endpoint.provider().receives()) {
  for (uint32_t i = 0; i < receive_.size(); ++i) {
    receive_[i].kind = Completion::Kind::kReceive;
    receive_[i].peer = this;
    receive_[i].buffer = i;
  }
}

int Peer::RegisterBuffers() {
  if (!endpoint_.RegistersLocalMemory()) return 0;
  const int code = sends_.Register(endpoint_.domain(), FI_SEND, endpoint_.memory().RandomKey());
  return code != 0 ? code : receives_.Register(endpoint_.domain(), FI_RECV, endpoint_.memory().RandomKey());
}

int Peer::Adopt(FidPtr<fid_ep> connection) {
  connection_ = std::move(connection);
  for (Receive& receive : receive_) {
    if (const int code = Repost(&receive); code != 0) return code;
  }
  return 0;
}

int Peer::Repost(Receive* receive) {
  return static_cast<int>(fi_recv(connection_.get(), receive_buffer(receive->buffer),
                                  sizeof(Announcement) + kMaxMessage, receives_.descriptor(), FI_ADDR_UNSPEC,
                                  &receive->scratch));
}

Operation* Peer::NewOperation(Completion::Kind kind, uint64_t user) {
  if (idle_.empty()) {
    if (operations_.size() == depth_) return nullptr;
    operations_.push_back(std::make_unique<Operation>());
    operations_.back()->buffer = static_cast<uint32_t>(operations_.size() - 1);
    idle_.push_back(operations_.back().get());
  }
  Operation* operation = idle_.back();
  idle_.pop_back();
  operation->kind = kind;
  operation->peer = this;
  operation->user = user;
  operation->region = nullptr;
  operation->message_size = 0;
  operation->announced = false;
  operation->taken = false;
  operation->silent = false;
  return operation;
}

int Peer::Give(Operation* operation) {
  if (operation->kind == Completion::Kind::kSend) return Send(operation);
  if (endpoint_.provider().write_outlives_registration && !operation->announced) {
    if (const int code = Announce(operation); code != 0) return code;
    operation->announced = true;
  }
  return Write(operation);
}

int Peer::Announce(Operation* operation) {
  if (operation->message_size == 0) {
    const Announcement announcement{{MessageHeader::kAnnouncement, local_id_}, operation->remote_key};
    return static_cast<int>(fi_inject(connection_.get(), &announcement, sizeof announcement, FI_ADDR_UNSPEC));
  }
  // Without a completion: the buffer is the operation's until the write behind it has ended.
  iovec data{send_buffer(operation->buffer), operation->message_size};
  void* descriptor = sends_.descriptor();
  const fi_msg message{&data, &descriptor, 1, FI_ADDR_UNSPEC, &operation->scratch, 0};
  return static_cast<int>(fi_sendmsg(connection_.get(), &message, 0));
}

int Peer::GiveAnnounced(Operation* operation) {
  const int code = Give(operation);
  if (code == 0) {
    Taken(operation);
  } else if (operation->announced) {
    waiting_.push_back(operation);  // the message has gone
  } else {
    idle_.push_back(operation);
  }
  return code == -FI_EAGAIN && operation->announced ? 0 : code;
}

void Peer::Taken(Operation* operation) {
  operation->order = ++order_;
  operation->taken = true;
  operation->position = static_cast<uint32_t>(taken_.size());
  taken_.push_back(operation);
}

int Peer::Send(Operation* operation) {
  iovec data{send_buffer(operation->buffer), operation->size};
  void* descriptor = sends_.descriptor();
  if (!endpoint_.SendsSilently()) {
    return static_cast<int>(
        fi_send(connection_.get(), data.iov_base, data.iov_len, descriptor, FI_ADDR_UNSPEC, &operation->scratch));
  }
  const fi_msg message{&data, &descriptor, 1, FI_ADDR_UNSPEC, &operation->scratch, 0};
  operation->silent = taken_.empty() && silent_.size() < kMostSilent;
  return static_cast<int>(fi_sendmsg(connection_.get(), &message, operation->silent ? 0 : FI_COMPLETION));
}

int Peer::Write(Operation* operation) {
  iovec data{const_cast<void*>(operation->data), operation->size};
  void* descriptor = operation->region == nullptr ? nullptr : operation->region->descriptor();
  if (!endpoint_.SendsSilently()) {
    return static_cast<int>(fi_writedata(connection_.get(), data.iov_base, data.iov_len, descriptor,
                                         operation->immediate, FI_ADDR_UNSPEC, operation->remote_address,
                                         operation->remote_key, &operation->scratch));
  }
  const fi_rma_iov target{operation->remote_address, operation->size, operation->remote_key};
  const fi_msg_rma message{
      &data, &descriptor, 1, FI_ADDR_UNSPEC, &target, 1, &operation->scratch, operation->immediate};
  return static_cast<int>(fi_writemsg(connection_.get(), &message, FI_REMOTE_CQ_DATA | FI_COMPLETION));
}

int Peer::Flush(std::vector<Operation*>* told) {
  while (state_ == PeerState::kConnected && !waiting_.empty()) {
    Operation* operation = waiting_.front();
    const int code = Give(operation);
    if (code == -FI_EAGAIN) return 0;
    if (code != 0) return code;
    waiting_.pop_front();
    if (operation->silent) {
      operation->order = ++order_;
      silent_.push_back(operation);
      told->push_back(operation);
    } else {
      Taken(operation);
    }
  }
  return 0;
}

void Peer::Retire(Operation* operation) {
  if (operation->taken) {
    taken_[operation->position] = taken_.back();
    taken_[operation->position]->position = operation->position;
    taken_.pop_back();
    operation->taken = false;
    FreeSilent(operation->order);
  }
  idle_.push_back(operation);
}

void Peer::FreeSilent(uint64_t order) {
  while (!silent_.empty() && silent_.front()->order < order) {
    idle_.push_back(silent_.front());
    silent_.pop_front();
  }
}

std::vector<Operation*> Peer::TakeWaiting(const Region* region) {
  // The first may have been announced: the receiver counts on it.
  const auto first = waiting_.begin() + (!waiting_.empty() && waiting_.front()->announced ? 1 : 0);
  const auto keep = std::stable_partition(first, waiting_.end(),
                                          [region](const Operation* operation) { return operation->region != region; });
  std::vector<Operation*> out(keep, waiting_.end());
  waiting_.erase(keep, waiting_.end());
  return out;
}

bool Peer::Uses(const Region* region) const {
  auto uses = [region](const Operation* operation) { return operation->region == region; };
  return std::any_of(taken_.begin(), taken_.end(), uses) || std::any_of(waiting_.begin(), waiting_.end(), uses);
}

std::vector<Operation*> Peer::Abandon() {
  state_ = PeerState::kDown;
  std::vector<Operation*> out(taken_.begin(), taken_.end());
  out.insert(out.end(), waiting_.begin(), waiting_.end());
  taken_.clear();
  waiting_.clear();
  FreeSilent(order_ + 1);
  for (Operation* operation : out) operation->taken = false;
  incoming.clear();
  return out;
}

}  // namespace byteps::fabric
