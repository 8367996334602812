package gpu

import "debug/elf"

// What libraries of this machine's processor are: to a loader's cache (FLAG_AARCH64_LIB64 and FLAG_ELF_LIBC6 of glibc's ldconfig.h), and to ELF.
const (
	nativeFlags   = 0x0a03
	nativeMachine = elf.EM_AARCH64
)
