// version.h - the release of this library.
//
// The ABI's version is in abi/byteps.h (BPS_ABI_MAJOR, BPS_ABI_MINOR), the wire protocol's in core/wire/wire.h: the
// three move independently. bps_version and bps_version_string are defined with it.
#ifndef BYTEPS_CORE_BASE_VERSION_H_
#define BYTEPS_CORE_BASE_VERSION_H_

namespace byteps {

// Equal to the newest entry of CHANGELOG.md at the root.
inline constexpr char kRelease[] = "0.1.0";

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_VERSION_H_
