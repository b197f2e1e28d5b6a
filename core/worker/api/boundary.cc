#include "core/worker/api/boundary.h"

#include <string>
#include <system_error>

#include "absl/status/status.h"

namespace byteps {

bps_status* StatusOfCurrentException(const char* function) noexcept {
  try {
    std::string text(function);
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return OutOfMemoryStatus();
    } catch (const std::system_error& error) {
      text.append(": ").append(error.what());
      if (error.code() == std::errc::too_many_files_open) {
        return StatusToC(absl::ResourceExhaustedError(text + " (ulimit -n)"));
      }
      return StatusToC(absl::InternalError(text));
    } catch (const std::exception& error) {
      text.append(": unexpected exception: ").append(error.what());
    } catch (...) {
      text.append(": unexpected exception of an unknown type");
    }
    return StatusToC(absl::InternalError(text));
  } catch (...) {
    return OutOfMemoryStatus();
  }
}

}  // namespace byteps
