/* A stand-in for libcuda.so.1 on a machine without a GPU: every function answers that there is no device. cuDNN then
   plans, compiles included, for a device that it is told of. Never put it where a driver is.

   planning.py adds the other functions that the installed cuDNN looks for, as aliases of no_device. */
#include <stddef.h>
#include <string.h>

enum { NO_DEVICE = 100 };

int no_device(void) { return NO_DEVICE; }

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = 0; /* by which cuDNN knows that there is nothing to load a module on */
  return NO_DEVICE;
}

int cuGetErrorString(int error, const char **text) {
  *text = "no device";
  return 0;
}

int cuGetErrorName(int error, const char **text) {
  *text = "CUDA_ERROR_NO_DEVICE";
  return 0;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  if (status != NULL) *status = 0;
  if (!strcmp(name, "cuDriverGetVersion")) *found = (void *)cuDriverGetVersion;
  else if (!strcmp(name, "cuDeviceGetCount")) *found = (void *)cuDeviceGetCount;
  else if (!strcmp(name, "cuGetErrorString")) *found = (void *)cuGetErrorString;
  else if (!strcmp(name, "cuGetErrorName")) *found = (void *)cuGetErrorName;
  else if (!strncmp(name, "cuGetProcAddress", 16)) *found = (void *)cuGetProcAddress_v2;
  else *found = (void *)no_device;
  return 0;
}

int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
