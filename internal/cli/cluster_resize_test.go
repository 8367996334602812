package cli

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// sizedTo is a cluster whose group has so many cores, and whose member is resizing in a phase; "" is a member that has its size.
func sizedTo(cores int, phase api.ResizePhase) api.Cluster {
	cl := api.Cluster{
		Name: "v1", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "v1", Size: 1, Shape: api.Shape{Cores: cores, Memory: 512 << 20}}}},
		Status: api.ClusterStatus{Phase: api.ClusterReady, TotalMembers: 1, Members: []api.MemberStatus{{Name: "v1-0", Phase: api.MemberReady}}},
	}
	if phase != "" {
		cl.Status.Members[0].Resizing = &api.MemberResizing{Phase: phase, Shape: cl.Spec.Groups[0].Shape, Message: "waits for room on node n1"}
	}
	return cl
}

func TestAResizeIsAwaitedUntilItsMembersHaveTheSizeOrNeedAReboot(t *testing.T) {
	for name, c := range map[string]struct {
		seen api.Cluster
		want bool
	}{
		"the watch shows the cluster before the request": {sizedTo(1, ""), false},
		"the member has no room yet":                     {sizedTo(2, api.ResizeWaiting), false},
		"the node has not answered yet":                  {sizedTo(2, api.ResizeApplying), false},
		"the member needs a reboot":                      {sizedTo(2, api.ResizeReboot), true},
		"the member has its size":                        {sizedTo(2, ""), true},
	} {
		if done, err := untilClaimed(sizedTo(2, ""), time.Minute).done(c.seen); done != c.want || err != nil {
			t.Errorf("%s: the wait is over: %t, %v; want %t", name, done, err, c.want)
		}
	}
}

func TestAPendingResizeIsShownWithTheMember(t *testing.T) {
	for phase, want := range map[api.ResizePhase]string{
		api.ResizeReboot:   "resize to 2 cores, 512MiB: takes effect at a reboot",
		api.ResizeWaiting:  "resize to 2 cores, 512MiB: waits for room on node n1",
		api.ResizeApplying: "resize to 2 cores, 512MiB",
	} {
		if got := resizingText(sizedTo(2, phase).Status.Members[0].Resizing); got != want {
			t.Errorf("%s: %q, want %q", phase, got, want)
		}
	}
}

func TestTheMembersThatHaveTheirNewSizeAreNamed(t *testing.T) {
	cl := sizedTo(2, api.ResizeReboot)
	cl.Status.Members[0].Group = "v1"
	cl.Status.Members = append(cl.Status.Members, api.MemberStatus{Name: "v1-1", Group: "v1"}, api.MemberStatus{Name: "w-0", Group: "w"})
	if got := sized(cl, "v1"); !slices.Equal(got, []string{"v1-1"}) {
		t.Errorf("members %q of group v1 have their size, want v1-1", got)
	}
	if got := resizing(cl, api.ResizeReboot); !slices.Equal(got, []string{"v1-0"}) {
		t.Errorf("members %q need a reboot, want v1-0", got)
	}
}
