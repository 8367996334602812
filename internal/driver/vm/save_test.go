package vm_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// successor makes the member that goes on where m was.
func (r *rig) successor(t *testing.T, m driver.Member) driver.Member {
	t.Helper()
	next := r.member(t)
	id := next.Assignment.ID
	next.Assignment = m.Assignment
	next.Assignment.ID, next.Assignment.From = id, m.Assignment.ID
	return next
}

func TestASavedMachineGoesOnInAnotherProcessAndKnowsTheTime(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	boot, process := r.sessions[id].bootID, pidOf(t, r, id)
	began := time.Now()
	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	t.Logf("save took %s", time.Since(began))
	counted := r.progress(t, id)
	next := r.successor(t, m)
	next.Files = append(next.Files, driver.File{Path: "/etc/mine", Content: []byte("later"), Mode: 0o644})
	began = time.Now()
	if err := r.Restore(t.Context(), next, id); err != nil {
		t.Fatal(err)
	}
	t.Logf("restore took %s", time.Since(began))
	s := r.sessions[next.Assignment.ID]
	if s.bootID != boot {
		t.Errorf("the guest's kernel is of boot %q, was %q", s.bootID, boot)
	}
	if got := s.counted.Load(); got < counted {
		t.Errorf("the program has counted to %d, and to %d before", got, counted)
	}
	if now := pidOf(t, r, next.Assignment.ID); now == process {
		t.Errorf("QEMU is still process %s", now)
	}
	if got := r.tell(t, next.Assignment.ID, order{Read: "/etc/mine"}).Text; got != "later" {
		t.Errorf("the guest's file is %q", got)
	}
	if off := time.Since(r.tell(t, next.Assignment.ID, order{Time: true}).Time).Abs(); off > 30*time.Second {
		t.Errorf("the guest's clock is %s off", off)
	}
}
