package resource

import "testing"

func TestAmountsAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 of disk", 1000: "1000 of disk", 1 << 20: "1MiB of disk", 3 << 29: "1536MiB of disk", 20 << 30: "20GiB of disk",
		14421016196: "13.4GiB of disk", 20<<30 - 1: "19.9GiB of disk", 5<<20 + 1<<19: "5.5MiB of disk",
	} {
		if got := Disk.Text(n); got != want {
			t.Errorf("%d bytes read %q, want %q", n, got, want)
		}
	}
}
