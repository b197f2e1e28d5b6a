/* old_driver.c - a libcuda.so.1 of long ago: it has cuInit and nothing else. */
int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags - flags); }
