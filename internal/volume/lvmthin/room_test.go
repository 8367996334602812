package lvmthin

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/volume"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// thinPool is a pool of 64 GiB as lvcreate makes it, with some logical volumes.
func thinPool(volumes ...Taken) Room {
	return Room{TotalBytes: 64 * gib, MetadataBytes: 64 * mib, ChunkBytes: 64 * kib, ExtentBytes: 4 * mib, Volumes: volumes}
}

func TestRoomIsWhatLogicalVolumesMayComeToTake(t *testing.T) {
	const margin = gib + marginLeast // of 64 GiB
	used := func(r Room, bytes int64) Room { r.UsedBytes = bytes; return r }
	chunks := func(r Room, bytes int64) Room { r.ChunkBytes = bytes; return r }
	metadata := func(r Room, bytes, used int64) Room { r.MetadataBytes, r.MetadataUsedBytes = bytes, used; return r }
	for _, c := range []struct {
		name       string
		room       Room
		held, left int64
	}{
		{"an empty pool", thinPool(), 0, 64*gib - margin},
		{"a volume holds its size, whatever it has blocks for", thinPool(Taken{SizeBytes: 4 * gib}), 4 * gib, 60*gib - margin},
		{"a volume has whole extents", thinPool(Taken{SizeBytes: 4*gib + 1}), 4*gib + 4*mib, 60*gib - margin - 4*mib},
		{"a snapshot holds what was mapped", thinPool(Taken{SizeBytes: 4 * gib}, Taken{SizeBytes: 4 * gib, MappedBytes: gib}), 5 * gib, 59*gib - margin},
		{"a snapshot of which nothing is known holds its size", thinPool(Taken{SizeBytes: 4 * gib}), 4 * gib, 60*gib - margin},
		{"a snapshot never holds more than its size", thinPool(Taken{SizeBytes: 4 * gib, MappedBytes: 5 * gib}), 4 * gib, 60*gib - margin},
		{"others may come to take the whole of their sizes", thinPool(Taken{SizeBytes: 20 * gib, Foreign: true}, Taken{SizeBytes: gib}), gib, 43*gib - margin},
		{"others were promised more than there is", thinPool(Taken{SizeBytes: 200 * gib, Foreign: true}, Taken{SizeBytes: gib}), gib, 0},
		{"what nobody is known to have is not given out", used(thinPool(Taken{SizeBytes: gib}), 10*gib), gib, 54*gib - margin},
		{"chunks that are larger than extents", chunks(thinPool(Taken{SizeBytes: gib + 1}), 32*mib), gib + 32*mib, 63*gib - margin - 32*mib},
		{"chunks that no extent is a multiple of", chunks(thinPool(), 192*kib), 0, 64*gib - margin - 4*mib},
		{"little metadata", metadata(thinPool(), 16*mib, 0), 0, (14*mib - volumeMetadata) / 48 * 64 * kib / (4 * mib) * (4 * mib)},
		{"no metadata", metadata(thinPool(Taken{SizeBytes: 4 * gib}), 2*mib, 0), 4 * gib, 0},
		{"metadata of which more is used than is known of", metadata(thinPool(), 64*mib, 55*mib), 0, (mib - volumeMetadata) / 48 * 64 * kib / (4 * mib) * (4 * mib)},
	} {
		if held, left := c.room.HeldBytes(), c.room.LeftBytes(); held != c.held || left != c.left {
			t.Errorf("%s: held %d and left %d, want %d and %d", c.name, held, left, c.held, c.left)
		}
		if capacity := c.room.CapacityBytes(); capacity != c.held+c.left {
			t.Errorf("%s: capacity %d, want %d", c.name, capacity, c.held+c.left)
		}
	}
}

func TestAllThatIsLeftMayBeAskedForAndNoMore(t *testing.T) {
	for _, chunk := range []int64{64 * kib, 192 * kib, 4 * mib, 12 * mib, 96 * mib} {
		for _, metadata := range []int64{2 * mib, 16 * mib, 100 * mib} {
			r := thinPool(Taken{SizeBytes: 3*gib + 5})
			r.ChunkBytes, r.MetadataBytes = chunk, metadata
			left := r.LeftBytes()
			if err := need(r, left); left > 0 && err != nil {
				t.Errorf("chunks of %d bytes, %d bytes of metadata: %v", chunk, metadata, err)
			}
			if err := need(r, left+r.ExtentBytes+1); !errors.Is(err, volume.ErrFull) {
				t.Errorf("chunks of %d bytes, %d bytes of metadata: more than is left: %v", chunk, metadata, err)
			}
			r.Volumes = append(r.Volumes, Taken{SizeBytes: left})
			if left > 0 && (r.dataLeft() < 0 || r.metadataLeft() < 0) {
				t.Errorf("chunks of %d bytes, %d bytes of metadata: the pool lacks %d bytes and %d of metadata once all is given out", chunk, metadata, -r.dataLeft(), -r.metadataLeft())
			}
		}
	}
}

func TestARefusalSaysWhatToDo(t *testing.T) {
	little := thinPool()
	little.MetadataBytes = 2 * mib
	for _, c := range []struct {
		name string
		room Room
		want string
	}{
		{"too large", thinPool(Taken{SizeBytes: gib}), "102400 MiB more is needed, and 63456 MiB is left of 64480 MiB"},
		{"promised to others", thinPool(Taken{SizeBytes: 65 * gib, Foreign: true}), "0 MiB is left of 0 MiB; the thin pool lacks 2080 MiB for all that its logical volumes may come to take; make it larger: lvextend"},
		{"metadata", little, "metadata is what is short; make it larger: lvextend --poolmetadatasize"},
	} {
		if err := need(c.room, 100*gib); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
