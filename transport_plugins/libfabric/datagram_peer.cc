#include "transport_plugins/libfabric/datagram_peer.h"

namespace byteps::fabric {

DatagramPeer::DatagramPeer(const bps_connect_args& args, uint32_t depth, uint32_t pieces)
    : number(args.peer), local_id(args.local_id), buffers(depth + pieces + 1, kPacketSize) {
  for (uint32_t i = 0; i < depth + pieces; ++i) {
    packets.push_back(std::make_unique<Packet>());
    Packet* packet = packets.back().get();
    packet->peer = this;
    packet->buffer = i;
    packet->kind = i < depth ? Packet::Kind::kMessage : Packet::Kind::kPiece;
    (i < depth ? free_messages : free_pieces).push_back(packet);
  }
  hello.kind = Packet::Kind::kHello;
  hello.peer = this;
  hello.buffer = depth + pieces;
}

std::string DatagramPeer::Greetings() const {
  std::string text = std::string(calls ? "we call" : "it calls") + ", its greeting has " +
                     (its_token == 0 ? "not come" : "come") + ", ours was " + (heard ? "" : "not ") + "heard; given " +
                     std::to_string(hellos_given) + (hello_out ? " (one not ended yet)" : "") + ", not taken " +
                     std::to_string(hellos_refused) + ", failed " + std::to_string(hellos_failed);
  if (!hello_failure.empty()) text += ", last with: " + hello_failure;
  return text;
}

}  // namespace byteps::fabric
