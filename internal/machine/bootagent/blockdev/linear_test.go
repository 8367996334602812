package blockdev

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// The layouts are those of include/uapi/linux/dm-ioctl.h, counted by hand.
func TestDeviceMapperStructuresAreLaidOutAsTheKernelReadsThem(t *testing.T) {
	table := linearTable(8192, 4096, 43, 0)
	if got := binary.NativeEndian.Uint64(table[0:]); got != 0 {
		t.Errorf("the target begins at sector %d, want 0", got)
	}
	if got := binary.NativeEndian.Uint64(table[8:]); got != 16 {
		t.Errorf("the target has %d sectors, want 16", got)
	}
	if got := binary.NativeEndian.Uint32(table[20:]); int(got) != len(table) || got%8 != 0 {
		t.Errorf("the next target is at %d, want %d, a multiple of 8", got, len(table))
	}
	if got := string(bytes.TrimRight(table[24:40], "\x00")); got != "linear" {
		t.Errorf("the target's type is %q", got)
	}
	if got := string(bytes.TrimRight(table[40:], "\x00")); got != "43:0 8" {
		t.Errorf("the target's parameters are %q, want device and offset in sectors", got)
	}
	if table[len(table)-1] != 0 {
		t.Error("the parameters are not ended by a zero byte")
	}

	request := dmRequest("nearmetal-root-0", dmReadOnly, table)
	for _, f := range []struct {
		name         string
		offset, want uint32
	}{
		{"version", 0, 4},
		{"data_size", 12, uint32(312 + len(table))},
		{"data_start", 16, 312},
		{"target_count", 20, 1},
		{"flags", 28, 1},
	} {
		if got := binary.NativeEndian.Uint32(request[f.offset:]); got != f.want {
			t.Errorf("%s is %d, want %d", f.name, got, f.want)
		}
	}
	if got := string(bytes.TrimRight(request[48:176], "\x00")); got != "nearmetal-root-0" {
		t.Errorf("the name is %q", got)
	}
	if !bytes.Equal(request[312:], table) {
		t.Error("the table does not follow the head")
	}
}
