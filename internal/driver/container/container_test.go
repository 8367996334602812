package container_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// expired is a deadline that has passed.
var expired = time.Unix(1, 0)

// waiting is a driver whose Start waits for the test member's connection, so that a signal sent next meets its handler.
type waiting struct {
	*container.Driver
	rig *rig
}

func (w waiting) Start(ctx context.Context, m driver.Member) error {
	return w.rig.startBy(ctx, w.Driver, m)
}

func testContract(t *testing.T, runtime string, sharesMemory bool) {
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		f := fixture(newRig(t, runtime))
		member := f.Member
		f.Member = func(t *testing.T) driver.Member {
			m := member(t)
			m.Assignment.SharesMemory = sharesMemory
			return m
		}
		return f
	})
}

func fixture(r *rig) drivertest.Fixture {
	return drivertest.Fixture{
		Driver: r, ServersOnly: true,
		Ports:  r.ports,
		Reopen: func(t *testing.T) driver.Driver { return waiting{Driver: r.open(t), rig: r} },
		Member: func(t *testing.T) driver.Member {
			m := r.member(t)
			m.Files = append(m.Files, driver.File{Path: "/etc/nearmetal/counting", Mode: 0o644})
			return m
		},
		Progress: r.progress,
		Shell: func(t *testing.T, id, line string) (string, error) {
			a := r.tell(t, id, order{Run: []string{"sh", "-c", line}})
			if a.Err != "" {
				return a.Output, errors.New(a.Err)
			}
			return a.Output, nil
		},
		Listen: func(t *testing.T, id string) int {
			return r.listen(t, id, "127.0.0.1")
		},
		Stubborn: func(m *driver.Member) {
			m.Files = append(slices.Clone(m.Files), driver.File{Path: "/etc/nearmetal/stubborn", Mode: 0o644})
		},
		End:  func(t *testing.T, o driver.Observation, code int) { r.tell(t, o.ID, order{Exit: &code}) },
		Left: r.left, Trip: r.trip,
	}
}

func TestContainersOnCrunMeetTheDriverContract(t *testing.T) { testContract(t, "crun", false) }

func TestContainersThatShareMemoryOnCrunMeetTheDriverContract(t *testing.T) {
	testContract(t, "crun", true)
}

func TestContainersOnRuncMeetTheDriverContract(t *testing.T) { testContract(t, "runc", false) }

func TestContainersThatShareMemoryOnRuncMeetTheDriverContract(t *testing.T) {
	testContract(t, "runc", true)
}

func TestContainersOnAnImageMeetTheDriverContract(t *testing.T) {
	needHost(t, "crun")
	layer := makeImage(t, smallTree(t), image.EROFS)
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		r := newImageRig(t, "crun", layer)
		f := fixture(r.rig)
		f.Member = func(t *testing.T) driver.Member {
			m := r.member(t)
			m.Files = append(m.Files, driver.File{Path: "/etc/nearmetal/counting", Mode: 0o644})
			return m
		}
		left := f.Left
		f.Left = func(t *testing.T) []string { return append(left(t), mountsOf(t, layer.Path)...) }
		return f
	})
}

func TestAMembersOwnAddressIsTriedBeforeItsLoopback(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	id, address := m.Assignment.ID, m.Assignment.Address().String()
	space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pidOf(t, r, id)))
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	err = space.Do(func() error { return exec.Command("ip", "address", "add", address+"/32", "dev", "lo").Run() })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := r.Dial(t.Context(), id, r.listen(t, id, address))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.RemoteAddr().(*net.TCPAddr).IP.String(); got != address {
		t.Errorf("connected to %s, want %s", got, address)
	}
}

func TestADialEndsWithItsContext(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Dial(ctx, m.Assignment.ID, 22); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it is cancelled", err)
	}
}

func TestAnAgentThatDiesWhileItPausesAMemberLeavesOneThatCanBeResumedOrCleaned(t *testing.T) {
	for _, next := range []string{"resume", "clean"} {
		t.Run(next, func(t *testing.T) {
			r := newRig(t, "crun")
			m := r.member(t)
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			crash(t, r, "container.after-freeze", doomed{
				StateDir: r.cfg.StateDir, Node: r.cfg.Node, MemberBinary: r.cfg.MemberBinary, Pause: true, Member: m,
			})
			second := r.open(t)
			if got := stateBy(t, second, m.Assignment.ID); got != driver.StatePaused {
				t.Errorf("after the crash the member is seen as %s, want paused", got)
			}
			if next == "resume" {
				if err := second.Resume(t.Context(), m.Assignment.ID); err != nil {
					t.Fatal(err)
				}
				if got := strings.TrimSpace(r.run(t, m.Assignment.ID, "echo", "alive")); got != "alive" {
					t.Errorf("resumed, it answers %q", got)
				}
			}
			if err := second.Clean(t.Context(), m.Assignment.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTwoInstallationsOnOneMachineDoNotTakeEachOthersMembersForDebris(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	other := newRig(t, "crun")
	other.cfg.Node = r.cfg.Node
	observations, err := other.open(t).Observe(t.Context())
	if err != nil || len(observations) > 0 {
		t.Errorf("a second installation with a node of the same name sees %+v (%v)", observations, err)
	}
}
