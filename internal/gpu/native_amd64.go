package gpu

import "debug/elf"

// nativeMachine is what libraries of this machine's processor are to ELF.
const nativeMachine = elf.EM_X86_64
