package loadercache

// NativeFlags are those of libraries of this machine's processor (FLAG_AARCH64_LIB64 and FLAG_ELF_LIBC6 of glibc's ldconfig.h).
const NativeFlags = 0x0a03
