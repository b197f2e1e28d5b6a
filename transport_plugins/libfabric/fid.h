// fid.h - owners of libfabric objects.
//
//     FidPtr<fid_domain> domain;
//     int rc = fi_domain(fabric, info, Out(domain), nullptr);
//
// Objects must go in the order endpoint, completion queue and registrations, domain, fabric: declare the members of a
// class the other way round.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FID_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FID_H_

#include <rdma/fabric.h>

#include <memory>

namespace byteps::fabric {

struct FidCloser {
  template <typename T>
  void operator()(T* object) const {
    fi_close(&object->fid);
  }
};

template <typename T>
using FidPtr = std::unique_ptr<T, FidCloser>;

struct InfoFreer {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};

using InfoPtr = std::unique_ptr<fi_info, InfoFreer>;

// A place for a C function to store a new object in; the owner has it at the end of the full expression.
template <typename Pointer>
class OutPlace {
 public:
  explicit OutPlace(Pointer& owner) : owner_(owner) {}
  ~OutPlace() { owner_.reset(raw_); }
  OutPlace(const OutPlace&) = delete;
  OutPlace& operator=(const OutPlace&) = delete;
  operator typename Pointer::pointer *() { return &raw_; }  // NOLINT: stands for `T**` in calls of C functions

 private:
  Pointer& owner_;
  typename Pointer::pointer raw_ = nullptr;
};

template <typename Pointer>
OutPlace<Pointer> Out(Pointer& owner) {
  return OutPlace<Pointer>(owner);
}

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_FID_H_
