// A shared object, but no plugin.
#include "abi/plugin.h"
extern "C" BPS_PLUGIN_EXPORT int32_t bps_something_else(void);
int32_t bps_something_else() { return 7; }
