package vm_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// testWatchdog is short, and still far beyond what a busy host takes from a guest at a time.
const testWatchdog = 20 * time.Second

func TestAMachineWhoseKernelStandsStillIsSeenToHangAndAPausedOneIsNot(t *testing.T) {
	r := newRig(t, needGuests(t))
	r.cfg.Watchdog = testWatchdog
	r.reopen(t)
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	look := time.NewTicker(testWatchdog / 20)
	defer look.Stop()
	for paused := time.Now(); time.Since(paused) < testWatchdog*3/2; <-look.C {
		if hung, err := r.Hung(t.Context()); len(hung) > 0 || err != nil {
			t.Fatalf("while it is paused: %v, %v", hung, err)
		}
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.tell(t, id, order{Read: "/etc/hostname"})
	if hung, err := r.Hung(t.Context()); len(hung) > 0 || err != nil {
		t.Fatalf("when it goes on: %v, %v", hung, err)
	}
	r.order(t, id, order{Panic: true})
	for asked := time.Now(); ; <-look.C {
		hung, err := r.Hung(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(hung[id], "its watchdog has stopped it") {
			break
		}
		if time.Since(asked) > patience {
			t.Fatal("a machine whose kernel stands still was not seen to hang")
		}
	}
	r.reopen(t) // what has fired is seen by the next agent, too
	if hung, err := r.Hung(t.Context()); hung[id] == "" || err != nil {
		t.Errorf("after the agent's restart: %v, %v", hung, err)
	}
	if all, err := r.Observe(t.Context()); err != nil || len(all) != 1 || all[0].State != driver.StateRunning {
		t.Errorf("it is %+v (%v), want it running: nobody has paused it", all, err)
	}
	if err := r.Driver.Resume(t.Context(), id); err == nil || !strings.Contains(err.Error(), "the machine hangs") {
		t.Errorf("resuming it: %v", err)
	}
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Stop(soon, id, time.Hour); err != nil {
		t.Errorf("stopping it: %v; nothing in it can obey the power button", err)
	}
}
