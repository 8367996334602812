package vm_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// standing is a paused member and the IDs of two that may be made of its state.
func standing(t *testing.T, r *rig) (m driver.Member, kept, laid driver.Member) {
	t.Helper()
	m, kept, laid = r.member(t), r.member(t), r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.Pause(t.Context(), m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	return m, kept, laid
}

func TestASnapshotThatWasDamagedOrIsOfAnotherQEMUDoesNotPassItsVerification(t *testing.T) {
	r := newRig(t, needGuests(t))
	m, kept, _ := standing(t, r)
	id := kept.Assignment.ID
	if err := r.Snapshot(t.Context(), id, m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	described := filepath.Join(r.cfg.StateDir, "vms", id, "saved.json")
	text, err := os.ReadFile(described)
	if err != nil {
		t.Fatal(err)
	}
	old := bytes.Replace(text, []byte(`"qemu":"`), []byte(`"qemu":"1.`), 1)
	if err := os.WriteFile(described, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(t.Context(), id); !errors.Is(err, driver.ErrUnfit) || !strings.Contains(err.Error(), "QEMU 1.") {
		t.Errorf("a state of another QEMU: %v, want ErrUnfit", err)
	}
	if err := os.WriteFile(described, text, 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := os.OpenFile(filepath.Join(r.cfg.StateDir, "vms", id, "state"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.WriteAt([]byte("not what it was"), 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := state.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(t.Context(), id); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged state: %v, want that it is damaged", err)
	}
}

// TestAnAgentThatIsKilledAmidASnapshotLeavesAMemberThatGoesOn needs a build with -tags failpoints.
func TestAnAgentThatIsKilledAmidASnapshotLeavesAMemberThatGoesOn(t *testing.T) {
	images := needGuests(t)
	r := newRig(t, images)
	m, kept, laid := standing(t, r)
	id, keptID, laidID := m.Assignment.ID, kept.Assignment.ID, laid.Assignment.ID
	adopt(t, r, id)
	for _, c := range []struct {
		failpoint, do string
		member        driver.Member
		from          string
		want          driver.State // of what the killed agent was making
	}{
		{"vm.after-snapshot-state", "snapshot", kept, id, driver.StatePrepared},
		{"vm.after-snapshot", "snapshot", kept, id, driver.StateSaved},
		{"vm.after-link", "lay-down", laid, keptID, driver.StatePrepared},
	} {
		if err := r.Driver.Close(); err != nil {
			t.Fatal(err)
		}
		crash(t, c.failpoint, doomed{StateDir: r.cfg.StateDir, Image: images.image, Do: c.do, Member: c.member, From: c.from})
		r.reopen(t)
		if got := stateOf(t, r, c.member.Assignment.ID); got != c.want {
			t.Errorf("after a crash at %s it is %s, want %s", c.failpoint, got, c.want)
		}
		if got := stateOf(t, r, id); got != driver.StatePaused {
			t.Errorf("after a crash at %s the member is %s, want it paused", c.failpoint, got)
		}
		if c.want == driver.StatePrepared {
			if err := r.Clean(t.Context(), c.member.Assignment.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Snapshot(t.Context(), keptID, id); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(t.Context(), keptID); err != nil {
		t.Error(err)
	}
	if err := r.LayDown(t.Context(), laidID, keptID); err != nil {
		t.Error(err)
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, r, id); got != driver.StateRunning {
		t.Errorf("in the end the member is %s", got)
	}
}
