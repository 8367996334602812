package container_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver/container"
)

func TestAMemberThatRanOutOfMemorySaysSo(t *testing.T) {
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime+", a process beside the first", func(t *testing.T) {
			r := newRig(t, runtime)
			m := r.member(t)
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if n, err := r.OutOfMemory(m.Assignment.ID); n != 0 || err != nil {
				t.Errorf("before: %d, %v", n, err)
			}
			a := r.tell(t, m.Assignment.ID, order{Run: []string{"/bin/sh", "-c", "perl -e '$x = q(a) x (1<<29)'; echo $?"}})
			if !strings.Contains(a.Output, "137") {
				t.Errorf("a process that takes 512MiB of 256MiB: %q (%s), want that it is killed", a.Output, a.Err)
			}
			if n, err := r.OutOfMemory(m.Assignment.ID); n != 1 || err != nil {
				t.Errorf("after: %d, %v; want 1", n, err)
			}
		})
		t.Run(runtime+", the first process", func(t *testing.T) {
			r := newRig(t, runtime, func(c *container.Config) { c.MemberArgs = []string{"/usr/bin/perl", "-e", "$x = q(a) x (1<<29)"} })
			m := r.member(t)
			if err := r.Driver.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			end, err := r.Wait(t.Context(), m.Assignment.ID)
			if err != nil || !strings.Contains(end.Message, "ran out of memory: its limit is 256MiB") {
				t.Errorf("its end: %q, %v", end.Message, err)
			}
		})
	}
}
