package vm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// TestAnAgentThatIsKilledAmidAHotplugIsFollowedByOneThatBringsTheMachineToItsSize needs a build with -tags failpoints.
func TestAnAgentThatIsKilledAmidAHotplugIsFollowedByOneThatBringsTheMachineToItsSize(t *testing.T) {
	images := needGuests(t)
	for _, c := range []struct {
		name, failpoint string
		// then is what the next agent does, and returns what runs then.
		then       func(t *testing.T, r *rig, m, larger driver.Member) driver.Member
		processors string
		mib        int
	}{
		{"the resize is repeated", "vm.after-widen", func(t *testing.T, r *rig, _, larger driver.Member) driver.Member {
			if err := r.Resize(t.Context(), larger); err != nil {
				t.Fatal(err)
			}
			return larger
		}, "0-1", 512},
		{"the resize was taken back meanwhile", "vm.after-plug", func(t *testing.T, r *rig, m, _ driver.Member) driver.Member {
			former := sizedAs(m, 2, 1, 384<<20, 0)
			if err := r.Resize(t.Context(), former); err != nil {
				t.Fatal(err)
			}
			return former
		}, "0", 384},
		{"the machine is to be saved with another size than it has", "vm.after-plug", func(t *testing.T, r *rig, m, larger driver.Member) driver.Member {
			if err := r.Save(t.Context(), m.Assignment.ID); err == nil || !strings.Contains(err.Error(), "reboot the member first") {
				t.Errorf("saving an emulated machine that would have to give a processor back: %v", err)
			}
			if err := errors.Join(r.Resize(t.Context(), larger), r.Save(t.Context(), m.Assignment.ID)); err != nil {
				t.Fatal(err)
			}
			next := r.successor(t, larger)
			if err := r.Restore(t.Context(), next, m.Assignment.ID); err != nil {
				t.Fatal(err)
			}
			return next
		}, "0-1", 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, images)
			m := sizedAs(r.member(t), 0, 1, 384<<20, 0)
			id := m.Assignment.ID
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			adopt(t, r, id)
			if err := r.Driver.Close(); err != nil {
				t.Fatal(err)
			}
			larger := sizedAs(m, 1, 2, 512<<20, 0)
			crash(t, c.failpoint, doomed{StateDir: r.cfg.StateDir, Image: images.image, Do: "resize", Member: larger})
			r.reopen(t)
			all, err := r.Observe(t.Context())
			if err != nil || len(all) != 1 || all[0].State != driver.StateRunning || all[0].Member.Assignment.SizeNumber != 0 {
				t.Fatalf("after the crash: %+v, %v; want it running, with its former size in its record", all, err)
			}
			runs := c.then(t, r, m, larger)
			awaitSize(t, r, runs.Assignment.ID, "in the end", c.processors, c.mib)
			wantHeld(t, r, runs)
		})
	}
}
