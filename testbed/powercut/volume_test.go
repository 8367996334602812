package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
	"github.com/nearmetal/nearmetal/testbed/guest"
)

// snapshotAfter is how many lines a volume has when a snapshot of it is made.
const snapshotAfter = 15

// A node's power is cut amid writes to a volume, each made durable by fsync. All that was acknowledged is there when the node is back, and a snapshot has
// what the volume had when it was made.
func TestAVolumeSurvivesThePowerCutOfItsNode(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	image, err := guest.EnsureImage(t.Context(), guest.CacheDir, guest.NodePackages())
	if err != nil {
		t.Fatal(err)
	}
	disk := newDisk(t, 2048)
	writer, output := boot(t, image, disk, "TestAVolumeInsideTheGuest", "write")
	acked, lines := 0, []string{}
	for acked < cutAfter && output.Scan() {
		lines = append(lines, output.Text())
		_, _ = fmt.Sscanf(output.Text(), "acked %d", &acked)
	}
	writer.Cut()
	for output.Scan() {
		_, _ = fmt.Sscanf(output.Text(), "acked %d", &acked)
	}
	if _, err := writer.Wait(); err == nil || acked < cutAfter {
		t.Fatalf("only %d lines were acknowledged before the guest ended:\n%s", acked, strings.Join(lines, "\n"))
	}
	reader, output := boot(t, image, disk, "TestAVolumeInsideTheGuest", "read")
	found, inSnapshot := -1, -1
	for lines = nil; output.Scan(); {
		lines = append(lines, output.Text())
		_, _ = fmt.Sscanf(output.Text(), "found %d", &found)
		_, _ = fmt.Sscanf(output.Text(), "snapshot %d", &inSnapshot)
	}
	if code, err := reader.Wait(); err != nil || code != 0 {
		t.Fatalf("reading after the power cut: exit code %d, %v\n%s", code, err, strings.Join(lines, "\n"))
	}
	t.Logf("%d lines acknowledged, %d found, %d in the snapshot", acked, found, inSnapshot)
	if found < acked || found > acked+1 {
		t.Errorf("after the power cut %d lines are there, want all %d that were acknowledged, and at most one more", found, acked)
	}
	if inSnapshot != snapshotAfter {
		t.Errorf("the snapshot has %d lines, want the %d that the volume had", inSnapshot, snapshotAfter)
	}
}

// TestAVolumeInsideTheGuest is what the guest runs: the other half of the test above.
func TestAVolumeInsideTheGuest(t *testing.T) {
	needs.Child(t, "NEARMETAL_POWERCUT")
	const dir = "/mnt/pool"
	pool, err := imagepool.New(imagepool.Config{Dir: dir, Images: reflink.New(reflink.Config{Dir: dir, LoopBytes: 1 << 30})})
	if err != nil {
		t.Fatal(err)
	}
	attached := []volume.Attachment{{ClusterUID: "c", UserIDs: api.IDRange{First: 1 << 20, Count: 1 << 16}}}
	v := volume.Volume{UID: "data", Generation: 1, SizeBytes: 64 << 20, MaxFiles: 1000, Attachments: attached}
	log := filepath.Join(pool.Root("data"), "log")
	if os.Getenv("NEARMETAL_POWERCUT") == "read" {
		v.Made, v.Generation, v.Snapshots = true, 3, []string{"before"}
		clone := volume.Volume{UID: "clone", Generation: 1, SizeBytes: 64 << 20, MaxFiles: 1000, Attachments: attached, Origin: &api.VolumeOrigin{VolumeUID: "data", SnapshotUID: "before"}}
		if err := errors.Join(pool.Apply(t.Context(), v), pool.Apply(t.Context(), clone)); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("found %d\n", linesOf(t, log))
		fmt.Printf("snapshot %d\n", linesOf(t, filepath.Join(pool.Root("clone"), "log")))
		return
	}
	if err := pool.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		if _, err := fmt.Fprintf(file, "%06d\n", n); err != nil {
			t.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			t.Fatal(err)
		}
		if n == snapshotAfter {
			v.Generation, v.Snapshots = 2, []string{"before"}
			if err := pool.Apply(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Printf("acked %d\n", n)
	}
}

// linesOf counts the lines of a file, each of which is its own number.
func linesOf(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if want := fmt.Sprintf("%06d\n", n); line != want {
			t.Fatalf("line %d of %s is %q: it is damaged", n, path, line)
		}
	}
	return n
}
