package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWhatAnAgentDoesAboutAMemberNext(t *testing.T) {
	wanted := &DesiredMember{Generation: 2}
	paused := &DesiredMember{Generation: 2, Paused: true}
	moved := &DesiredMember{Generation: 2, Moving: true}
	takenBack := &DesiredMember{Generation: 2, TakeBack: true}
	rebooted := &DesiredMember{Generation: 2, Reboot: true, RebootGrace: 30 * time.Second}
	release := &DesiredMember{Generation: 2, Release: true, Grace: 10 * time.Second}
	failures := func(n int, message string) Attempts {
		var a Attempts
		for range n {
			a = a.Fail(message, t0)
		}
		return a
	}
	tests := []struct {
		name string
		in   MemberInput
		want []string
	}{
		{"one that is not there is started", MemberInput{Desired: wanted, Host: HostAbsent}, []string{"Report preparing", "Start{}"}},
		{
			"after a failure it waits before it tries again",
			MemberInput{Desired: wanted, Host: HostAbsent, Attempts: failures(2, "no space")},
			[]string{"Report preparing: no space; retrying", "WakeAt 2s"},
		},
		{
			"when the pause is over it tries again",
			MemberInput{Desired: wanted, Host: HostAbsent, Attempts: failures(2, "no space"), Now: t0.Add(2 * time.Second)},
			[]string{"Report preparing: no space; retrying", "Start{}"},
		},
		{"debris of a crash is cleaned before the start", MemberInput{Desired: wanted, Host: HostPrepared}, []string{"Report preparing", "Clean{}"}},
		{
			"after the last attempt it has failed",
			MemberInput{Desired: wanted, Host: HostAbsent, Attempts: failures(5, "no space"), Now: t0.Add(time.Minute)},
			[]string{"Report failed: no space"},
		},
		{
			"and stays failed, however long ago that was: its leader replaces it",
			MemberInput{Desired: wanted, Host: HostAbsent, Attempts: failures(5, "no space"), Now: t0.Add(time.Hour)},
			[]string{"Report failed: no space"},
		},
		{"one that runs is starting until it says that it is ready", MemberInput{Desired: wanted, Host: HostRunning}, []string{"Report starting"}},
		{"then it is ready", MemberInput{Desired: wanted, Host: HostRunning, Ready: true}, []string{"Report ready"}},
		{"one that runs after failures is what it is", MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Attempts: failures(5, "x")}, []string{"Report ready"}},
		{
			"files that are not those wanted are brought up to date",
			MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Stale: true},
			[]string{"Report ready", "Update{}"},
		},
		{
			"an update that failed is tried again later",
			MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Stale: true, Attempts: failures(1, "read-only")},
			[]string{"Report ready: read-only", "WakeAt 1s"},
		},
		{
			"one that ended has failed at once, and what is left of it stays",
			MemberInput{Desired: wanted, Host: HostExited, HostMessage: "ended by signal 9"},
			[]string{"Report failed: ended by signal 9"},
		},
		{"also one of which no more is known", MemberInput{Desired: wanted, Host: HostExited}, []string{"Report failed: ended"}},
		{
			"also one that was found so by an agent that has just started",
			MemberInput{Desired: wanted, Host: HostExited, HostMessage: "exit code 1", RecoveredAt: t0},
			[]string{"Report failed: exit code 1"},
		},
		{
			"also one that could not be updated before",
			MemberInput{Desired: wanted, Host: HostExited, HostMessage: "exit code 1", Attempts: failures(1, "read-only"), Now: t0.Add(time.Minute)},
			[]string{"Report failed: exit code 1"},
		},
		{
			"what a failed start left behind is cleaned and tried again",
			MemberInput{Desired: wanted, Host: HostExited, NeverRan: true, Attempts: failures(1, "no space"), Now: t0.Add(time.Minute)},
			[]string{"Report preparing: no space; retrying", "Clean{}"},
		},
		{
			"after a pause",
			MemberInput{Desired: wanted, Host: HostExited, NeverRan: true, Attempts: failures(1, "no space")},
			[]string{"Report preparing: no space; retrying", "WakeAt 1s"},
		},
		{
			"and not after the last attempt",
			MemberInput{Desired: wanted, Host: HostExited, NeverRan: true, Attempts: failures(5, "no space"), Now: t0.Add(time.Minute)},
			[]string{"Report failed: no space"},
		},
		{
			"one that can't be used is unhealthy",
			MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Unhealthy: "check mpi: exit code 3"},
			[]string{"Report unhealthy: check mpi: exit code 3"},
		},
		{
			"before it was ready it is only starting",
			MemberInput{Desired: wanted, Host: HostRunning, Unhealthy: "SSH does not answer"},
			[]string{"Report starting"},
		},
		{
			"an unhealthy one is brought up to date like any",
			MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Unhealthy: "x", Stale: true},
			[]string{"Report unhealthy: x", "Update{}"},
		},
		{
			"why it is unhealthy is told before why it could not be updated",
			MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Unhealthy: "x", Stale: true, Attempts: failures(1, "read-only")},
			[]string{"Report unhealthy: x", "WakeAt 1s"},
		},
		{
			"one that is being moved is what it is, until its successor fetches it",
			MemberInput{Desired: moved, Host: HostRunning, Ready: true},
			[]string{"Report ready"},
		},
		{
			"one that was sent, and may run there, is left alone",
			MemberInput{Desired: moved, Host: HostHandedOver, Departed: true},
			[]string{"Report unknown: it was handed over, and may run on another node"},
		},
		{
			"one that was sent in vain is taken back",
			MemberInput{Desired: takenBack, Host: HostHandedOver, Departed: true},
			[]string{"Report unknown: it was handed over, and may run on another node", "TakeBack{}"},
		},
		{
			"taking it back is tried again later",
			MemberInput{Desired: takenBack, Host: HostHandedOver, Departed: true, Attempts: failures(1, "no libvirt")},
			[]string{"Report unknown: no libvirt", "WakeAt 1s"},
		},
		{"one that is released is cleaned though it may run there", MemberInput{Desired: release, Host: HostHandedOver, Departed: true}, []string{"Report releasing", "Clean{}"}},
		{
			"what was sent and has gone is unknown here while it moves",
			MemberInput{Desired: moved, Host: HostPrepared, Departed: true},
			[]string{"Report unknown: it was sent to another node"},
		},
		{
			"one that moves is not started by a node that lost its disk, and with it that the member was sent",
			MemberInput{Desired: moved, Host: HostAbsent},
			[]string{"Report unknown: nothing of it is on this node; it may have been sent to another node"},
		},
		{
			"and is never started again, not even by a host that has restarted",
			MemberInput{Desired: wanted, Host: HostAbsent, Departed: true},
			[]string{"Report failed: it was sent to another node, and is no longer here"},
		},
		{"one that was to be sent and was not runs on", MemberInput{Desired: wanted, Host: HostRunning, Ready: true, Departed: true}, []string{"Report ready"}},
		{
			"a member whose reboot is requested boots again, with its new files",
			MemberInput{Desired: rebooted, Host: HostRunning, Ready: true, Stale: true},
			[]string{"Report starting: rebooting on request", "Reboot{Grace:30s}"},
		},
		{
			"a member that exited in the middle of its reboot goes on with it",
			MemberInput{Desired: rebooted, Host: HostExited, HostMessage: "the virtual machine is off"},
			[]string{"Report starting: rebooting on request", "Reboot{Grace:30s}"},
		},
		{
			"a reboot that failed is retried later",
			MemberInput{Desired: rebooted, Host: HostExited, Attempts: failures(1, "no libvirt")},
			[]string{"Report starting: no libvirt; retrying the reboot", "WakeAt 1s"},
		},
		{
			"a member whose reboot failed too often has failed",
			MemberInput{Desired: rebooted, Host: HostExited, HostMessage: "the virtual machine is off", Attempts: failures(5, "x"), Now: t0.Add(time.Minute)},
			[]string{"Report failed: the virtual machine is off"},
		},
		{
			"a running member is given its new size",
			MemberInput{Desired: &DesiredMember{Generation: 2, ChangeSize: true}, Host: HostRunning, Ready: true},
			[]string{"Report ready", "ChangeSize{}"},
		},
		{
			"a member gets its new files before its new size",
			MemberInput{Desired: &DesiredMember{Generation: 2, ChangeSize: true}, Host: HostRunning, Ready: true, Stale: true},
			[]string{"Report ready", "Update{}"},
		},
		{
			"a member that is to reboot takes its new size with that",
			MemberInput{Desired: &DesiredMember{Generation: 2, ChangeSize: true, Reboot: true}, Host: HostRunning, Ready: true},
			[]string{"Report starting: rebooting on request", "Reboot{Grace:0s}"},
		},
		{
			"a resize that failed is retried later",
			MemberInput{Desired: &DesiredMember{Generation: 2, ChangeSize: true}, Host: HostRunning, Ready: true, Attempts: failures(1, "no libvirt")},
			[]string{"Report ready: no libvirt", "WakeAt 1s"},
		},
		{
			"a member on its way to another node keeps its size",
			MemberInput{Desired: &DesiredMember{Generation: 2, ChangeSize: true, Moving: true}, Host: HostRunning, Ready: true},
			[]string{"Report ready"},
		},
		{
			"a member on its way to another node is not rebooted",
			MemberInput{Desired: &DesiredMember{Generation: 2, Reboot: true, Moving: true}, Host: HostRunning, Ready: true},
			[]string{"Report ready"},
		},
		{"one that is wanted paused is frozen", MemberInput{Desired: paused, Host: HostRunning, Ready: true}, []string{"Report ready", "Pause{}"}},
		{
			"before its files are brought up to date",
			MemberInput{Desired: paused, Host: HostRunning, Ready: true, Stale: true},
			[]string{"Report ready", "Pause{}"},
		},
		{"a new one is started first", MemberInput{Desired: paused, Host: HostAbsent}, []string{"Report preparing", "Start{}"}},
		{"then frozen", MemberInput{Desired: paused, Host: HostRunning}, []string{"Report starting", "Pause{}"}},
		{
			"one that ran on while the agent restarted need not speak up to be frozen",
			MemberInput{Desired: paused, Host: HostRunning, RecoveredAt: t0},
			[]string{"Report starting", "Pause{}"},
		},
		{
			"freezing that failed is tried again later",
			MemberInput{Desired: paused, Host: HostRunning, Ready: true, Attempts: failures(9, "no freezer")},
			[]string{"Report ready: no freezer", "WakeAt 30s"},
		},
		{"a frozen one is paused", MemberInput{Desired: paused, Host: HostPaused, Ready: true}, []string{"Report paused"}},
		{"and left alone", MemberInput{Desired: paused, Host: HostPaused, Ready: true, Unhealthy: "x", Stale: true}, []string{"Report paused"}},
		{"one that is wanted paused no more is woken", MemberInput{Desired: wanted, Host: HostPaused}, []string{"Report paused", "Resume{}"}},
		{
			"waking that failed is tried again later",
			MemberInput{Desired: wanted, Host: HostPaused, Attempts: failures(1, "no cgroup")},
			[]string{"Report paused: no cgroup", "WakeAt 1s"},
		},
		{
			"a frozen one that is released is woken to be stopped",
			MemberInput{Desired: release, Host: HostPaused},
			[]string{"Report releasing", "Resume{}"},
		},
		{"so is one that nobody wants", MemberInput{Current: true, Host: HostPaused}, []string{"Report releasing", "Resume{}"}},
		{"a paused one that ended has failed", MemberInput{Desired: paused, Host: HostExited, HostMessage: "x"}, []string{"Report failed: x"}},
		{
			"an older generation is not obeyed",
			MemberInput{Desired: wanted, Host: HostAbsent, NewestGeneration: 3},
			[]string{"Reject{Reason:the desired generation is 2, the newest is 3}"},
		},
		{
			"but it is released",
			MemberInput{Desired: release, Host: HostRunning, NewestGeneration: 3},
			[]string{"Report releasing", "Stop{Grace:10s}"},
		},
		{"a released one that runs is stopped politely", MemberInput{Desired: release, Host: HostRunning, Ready: true}, []string{"Report releasing", "Stop{Grace:10s}"}},
		{"then it is cleaned", MemberInput{Desired: release, Host: HostExited}, []string{"Report releasing", "Clean{}"}},
		{"one that is not there is cleaned all the same, to be sure", MemberInput{Desired: release, Host: HostAbsent}, []string{"Report releasing", "Clean{}"}},
		{"then it is confirmed", MemberInput{Desired: release, Host: HostAbsent, Cleaned: true}, []string{"ReportClean{}"}},
		{
			"what is seen on the host after a clean is not confirmed",
			MemberInput{Desired: release, Host: HostPrepared, Cleaned: true},
			[]string{"Report releasing", "Clean{}"},
		},
		{
			"cleaning is never given up",
			MemberInput{Desired: release, Host: HostPrepared, Attempts: failures(50, "busy"), Now: t0.Add(time.Minute)},
			[]string{"Report releasing: busy", "Clean{}"},
		},
		{
			"but waits between attempts",
			MemberInput{Desired: release, Host: HostPrepared, Attempts: failures(50, "busy")},
			[]string{"Report releasing: busy", "WakeAt 30s"},
		},
		{
			"one that ran on while the agent restarted is not told to be less than it may be",
			MemberInput{Desired: wanted, Host: HostRunning, RecoveredAt: t0, Now: t0.Add(time.Second)},
			[]string{"Report unknown: running; the agent has just restarted and awaits its first health report", "WakeAt 10s"},
		},
		{"it is ready when it says so", MemberInput{Desired: wanted, Host: HostRunning, RecoveredAt: t0, Ready: true}, []string{"Report ready"}},
		{
			"it is no more than starting when it does not speak up",
			MemberInput{Desired: wanted, Host: HostRunning, RecoveredAt: t0, Now: t0.Add(10 * time.Second)},
			[]string{"Report starting"},
		},
		{
			"an unknown one is left alone until the leader was heard",
			MemberInput{Host: HostRunning},
			[]string{"Report unknown: found on the node; the agent has just restarted"},
		},
		{"what is neither wanted nor there is not spoken of", MemberInput{Host: HostAbsent}, nil},
		{"then it is stopped at once", MemberInput{Current: true, Host: HostRunning}, []string{"Report releasing", "Stop{Grace:0s}"}},
		{"and cleaned", MemberInput{Current: true, Host: HostPrepared}, []string{"Report releasing", "Clean{}"}},
		{"and forgotten", MemberInput{Current: true, Host: HostAbsent, Cleaned: true}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.in.Now.IsZero() {
				tt.in.Now = t0
			}
			var want []string
			want = append(want, tt.want...)
			got := sketch(PlanMember(tt.in))
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPausesBetweenAttemptsDoubleUpToHalfAMinute(t *testing.T) {
	var a Attempts
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		a = a.Fail("x", t0)
		if got := a.NextTry.Sub(t0); got != want*time.Second {
			t.Errorf("pause after failure %d: want %s, got %s", a.Count, want*time.Second, got)
		}
	}
	if a = a.Fail("x", t0.Add(10*time.Minute)); a.Count != 1 {
		t.Errorf("a failure after ten quiet minutes is the first: got number %d", a.Count)
	}
}

func TestDesiredStateOfAFormerLeaderOrAnEarlierTimeIsNotObeyed(t *testing.T) {
	have := Epoch{Term: 3, Revision: 70}
	tests := []struct {
		next Epoch
		want string
	}{
		{Epoch{3, 70}, ""},
		{Epoch{3, 71}, ""},
		{Epoch{4, 1}, ""},
		{Epoch{2, 99}, "the desired state is from a former leader: its term is 2, the current term is 3"},
		{Epoch{3, 69}, "the desired state is outdated: its revision is 69, the newest is 70"},
	}
	for _, tt := range tests {
		got := ""
		if err := have.Accept(tt.next); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v after %+v: want %q, got %q", tt.next, have, tt.want, got)
		}
	}
}
