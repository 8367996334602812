package gpu

import "debug/elf"

// What libraries of this machine's processor are: to a loader's cache (FLAG_X8664_LIB64 and FLAG_ELF_LIBC6 of glibc's ldconfig.h), and to ELF.
const (
	nativeFlags   = 0x0303
	nativeMachine = elf.EM_X86_64
)
