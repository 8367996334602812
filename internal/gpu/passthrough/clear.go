package passthrough

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Clearing is how a GPU's memory is cleared between owners.
type Clearing string

const (
	// ClearingProven overwrites the memory that the GPU's windows show, and reads it back. A GPU that does not show all of its memory goes to nobody.
	ClearingProven Clearing = "proven"
	// ClearingReset trusts the GPU's reset to clear its memory, for GPUs whose vendor says so.
	ClearingReset Clearing = "reset"
)

const (
	// wordBytes is the unit of reads and writes, pageBytes that of a sample.
	wordBytes = 8
	pageBytes = 4096
	// readWhole is how much of each window is read back word by word. Of what is behind, a word of each page is: a read crosses the bus and back, so that
	// all of 80 GiB would take hours.
	readWhole = 64 << 20
	// mark is written before, and its complement, to see whether a window is of memory.
	mark = 0x6e6561726d65746c
)

var errNotMemory = errors.New("it does not keep what is written to it")

// clearMemory overwrites a window with zeros, and reads it back.
func clearMemory(window []byte) error {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(window))), len(window)/wordBytes)
	last := &words[len(words)-1]
	for _, value := range []uint64{mark, ^uint64(mark)} {
		store(last, value)
		if got := atomic.LoadUint64(last); got != value {
			return errNotMemory
		}
	}
	for i := range words {
		store(&words[i], 0)
	}
	for i := 0; i < len(words); i += stride(i) {
		if got := atomic.LoadUint64(&words[i]); got != 0 {
			return fmt.Errorf("it holds %#x at %#x after it was overwritten with zeros", got, i*wordBytes)
		}
	}
	return nil
}

// store is one plain write. The compiler would join writes in a loop to instructions that not every device takes, and atomic writes lock the bus.
//
//go:noinline
func store(word *uint64, value uint64) { *word = value }

// stride is from one word that is read back to the next.
func stride(word int) int {
	if word < readWhole/wordBytes {
		return 1
	}
	return pageBytes / wordBytes
}
