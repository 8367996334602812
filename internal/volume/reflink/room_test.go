package reflink

import "testing"

func TestRoomIsWhatImagesMayComeToTake(t *testing.T) {
	const gib = 1 << 30
	const margin = gib + marginLeast // of 32 GiB
	volume := Taken{SizeBytes: 4 * gib, AllocatedBytes: 4*gib + 4096}
	snapshot := Taken{SizeBytes: 4 * gib, AllocatedBytes: gib, Snapshot: true}
	for _, c := range []struct {
		name       string
		room       Room
		held, left int64
	}{
		{"an empty file system of its own", Room{TotalBytes: 32 * gib, FreeBytes: 31 * gib, Alone: true}, 0, 32*gib - margin},
		{"a volume holds its size, whatever the file system needs for it", Room{TotalBytes: 32 * gib, Alone: true, Images: []Taken{volume}}, 4 * gib, 28*gib - margin},
		{"a volume whose blocks were given back holds its size", Room{TotalBytes: 32 * gib, Alone: true, Images: []Taken{{SizeBytes: 4 * gib}}}, 4 * gib, 28*gib - margin},
		{"a snapshot holds what was written", Room{TotalBytes: 32 * gib, Alone: true, Images: []Taken{volume, snapshot}}, 5 * gib, 27*gib - margin},
		{"a snapshot of Btrfs has all blocks", Room{TotalBytes: 32 * gib, Alone: true, Images: []Taken{volume, {SizeBytes: 4 * gib, AllocatedBytes: 5 * gib, Snapshot: true}}}, 8 * gib, 24*gib - margin},
		{"more than there is", Room{TotalBytes: 32 * gib, Alone: true, Images: []Taken{{SizeBytes: 40 * gib}}}, 40 * gib, 0},
		{"beside other files, what is free counts", Room{TotalBytes: 32 * gib, FreeBytes: 20 * gib, Images: []Taken{volume}}, 4 * gib, 20*gib - margin},
		{"beside other files, a snapshot's blocks may be copied once", Room{TotalBytes: 32 * gib, FreeBytes: 20 * gib, Images: []Taken{volume, snapshot}}, 5 * gib, 19*gib - margin},
		{"beside other files, a clone's blocks may be copied, too", Room{TotalBytes: 32 * gib, FreeBytes: 20 * gib, Images: []Taken{volume, snapshot, {SizeBytes: 4 * gib, AllocatedBytes: 4 * gib, SharedBytes: gib}}}, 9 * gib, 18*gib - margin},
		{"beside other files, blocks that were given back are owed", Room{TotalBytes: 32 * gib, FreeBytes: 20 * gib, Images: []Taken{{SizeBytes: 4 * gib, AllocatedBytes: gib}}}, 4 * gib, 17*gib - margin},
		{"a full disk", Room{TotalBytes: 32 * gib, FreeBytes: gib / 2, Images: []Taken{volume}}, 4 * gib, 0},
	} {
		if held, left := c.room.HeldBytes(), c.room.LeftBytes(); held != c.held || left != c.left {
			t.Errorf("%s: held %d and left %d, want %d and %d", c.name, held, left, c.held, c.left)
		}
		if capacity := c.room.CapacityBytes(); capacity != c.held+c.left {
			t.Errorf("%s: capacity %d, want %d", c.name, capacity, c.held+c.left)
		}
	}
}

func TestAPoolThatIsNotMadeYetHasTheRoomThatItWillHave(t *testing.T) {
	// What statfs says of such file systems, in MiB: their size, their total, and what is free of it.
	for _, c := range []struct{ size, total, free int64 }{{400, 336, 313}, {640, 576, 539}, {1 << 10, 960, 921}, {10 << 10, 10176, 10072}, {1 << 20, 1048512, 1041169}} {
		r := unmade(c.size << 20)
		if r.TotalBytes != c.total<<20 || r.LeftBytes() > c.free<<20 || r.LeftBytes() < c.free<<20*9/10 {
			t.Errorf("of %d MiB, %d MiB are left of %d MiB; want at most %d MiB of %d MiB", c.size, r.LeftBytes()>>20, r.TotalBytes>>20, c.free, c.total)
		}
	}
}
