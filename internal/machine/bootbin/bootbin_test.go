package bootbin

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestTheBootAgentIsOneStaticProgram(t *testing.T) {
	data, err := Binary()
	if err == ErrMissing {
		needs.Missing(t, "this build embeds no boot agent (make boot builds it)")
	}
	if err != nil {
		t.Fatal(err)
	}
	binary, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	// The initial RAM disk has no dynamic loader.
	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("it needs the libraries %v (%v), want none", libraries, err)
	}
	// Every machine loads it before it has its root.
	if atMost := 12 << 20; len(data) > atMost {
		t.Errorf("it has %d bytes, want at most %d", len(data), atMost)
	}
}
