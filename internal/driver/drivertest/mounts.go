package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// mounts has two members share a directory, which one of them has a second time, to be read only.
func mounts(t *testing.T, ctx context.Context, f Fixture) {
	if f.Shell == nil {
		return // members of this driver take no volumes
	}
	writer, reader := f.Member(t), f.Member(t)
	dir := volumeOf(t, writer)
	writer.Mounts = []driver.Mount{{Source: dir, Path: "/volumes/data"}, {Source: dir, Path: "/srv/below/here", ReadOnly: true}}
	reader.Mounts = []driver.Mount{{Source: dir, Path: "/mnt"}}
	for _, m := range []driver.Member{writer, reader} {
		must(t, "Start", f.Driver.Start(ctx, m))
	}
	if _, err := f.Shell(t, writer.Assignment.ID, "echo shared > /volumes/data/file"); err != nil {
		t.Fatalf("a member can't write: %v", err)
	}
	for _, read := range []struct{ id, path string }{{writer.Assignment.ID, "/srv/below/here/file"}, {reader.Assignment.ID, "/mnt/file"}} {
		if got, err := f.Shell(t, read.id, "cat "+read.path); got != "shared\n" || err != nil {
			t.Errorf("member %s reads %q of %s (%v), want what was written", read.id, got, read.path, err)
		}
	}
	for _, line := range []string{"echo x > /srv/below/here/other", "mount -o remount,bind,rw /srv/below/here && echo x > /srv/below/here/other"} {
		if _, err := f.Shell(t, writer.Assignment.ID, line); err == nil {
			t.Errorf("%q succeeded where a member may only read", line)
		}
	}
	for _, m := range []driver.Member{writer, reader} {
		must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); string(got) != "shared\n" || err != nil {
		t.Errorf("after the members were cleaned, the file holds %q (%v), want what was written", got, err)
	}
}
