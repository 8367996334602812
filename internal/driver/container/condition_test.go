package container_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// trip gives a member a link to a host of its cluster's network without a condition, and measures how long that takes to refuse a connection.
func (r *rig) trip(t *testing.T, id string) func() time.Duration {
	t.Helper()
	inside := r.network(t, id)
	peer, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	runIn(t, peer, fmt.Sprintf("ip link add eth1 type veth peer name eth0 netns /proc/%d/fd/%d; ip link set eth1 up; ip addr add 10.64.0.3/20 dev eth1", os.Getpid(), inside.FD()))
	runIn(t, inside, "ip addr add 10.64.0.2/20 dev eth0; ip link set eth0 up")
	if err := inside.Close(); err != nil { // else it would outlive the member
		t.Fatal(err)
	}
	return func() time.Duration {
		space := r.network(t, id)
		defer space.Close()
		var took time.Duration
		if err := space.Do(func() error {
			began := time.Now()
			_, err := net.DialTimeout("tcp4", "10.64.0.3:9", 10*time.Second)
			took = time.Since(began)
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("connecting to a closed port: %w", err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return took
	}
}

// runIn runs a command line in a network namespace, and returns what it printed.
func runIn(t *testing.T, space netns.Handle, line string) (out string) {
	t.Helper()
	if err := space.Do(func() error {
		said, err := exec.Command("sh", "-ec", line).CombinedOutput()
		out = string(said)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, said)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// network opens the network namespace of a running member.
func (r *rig) network(t *testing.T, id string) netns.Handle {
	t.Helper()
	found, err := r.Observe(t.Context())
	if err != nil { // its driver is closed
		found, err = r.open(t).Observe(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		if o.ID == id && (o.State == driver.StateRunning || o.State == driver.StatePaused) {
			space, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", o.PID))
			if err != nil {
				t.Fatal(err)
			}
			return space
		}
	}
	t.Fatalf("member %s does not run", id)
	return netns.Handle{}
}

// A detour holds a member's network namespace, and ends with the member, whether somebody stops that or not.
func TestADetourEndsWithItsMember(t *testing.T) {
	needHost(t, "crun")
	for _, stopped := range []bool{false, true} {
		r := newRig(t, "crun")
		m := r.member(t)
		id := m.Assignment.ID
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		r.trip(t, id)
		m.Condition = delayOf(5 * time.Millisecond)
		if err := r.SetCondition(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if stopped {
			if err := r.Stop(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
		} else {
			ended := make(chan error, 1)
			go func() {
				_, err := r.Wait(t.Context(), id)
				ended <- err
			}()
			code := 0
			r.tell(t, id, order{Exit: &code})
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		if r.HasDetour(id) {
			t.Errorf("stopped %t: the detour of a member that has ended is still there", stopped)
		}
	}
}

// A condition that is not in force is an error, whatever keeps it from that, and the next attempt begins anew.
func TestAConditionCountsOnceItIsMeasured(t *testing.T) {
	needHost(t, "crun")
	r := newRig(t, "crun")
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.trip(t, id)
	in := func(line string) string {
		t.Helper()
		space := r.network(t, id)
		defer space.Close()
		return runIn(t, space, line)
	}
	m.Condition = delayOf(20 * time.Millisecond)
	if err := r.SetCondition(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	in("ip rule del priority 10")
	if err := r.SetCondition(t.Context(), m); !errors.Is(err, condition.ErrNotInForce) {
		t.Errorf("while packets go past the detour: %v, want ErrNotInForce", err)
	}
	if r.HasDetour(id) {
		t.Error("a detour that packets go past is still there")
	}
	if err := r.SetCondition(t.Context(), m); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
	m.Condition = nil
	if err := r.SetCondition(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	const usual = "ip rule list | sort"
	before := in(usual)
	in("ip rule add priority 30 iif lo table 7234305") // as a killed process leaves it
	if err := r.SetCondition(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if after := in(usual); after != before {
		t.Errorf("what an ended process left is still there:\n%s", after)
	}
}

func TestPacketsGoStraightOnceTheirDriverIsClosed(t *testing.T) {
	needHost(t, "crun")
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	trip := r.trip(t, m.Assignment.ID)
	m.Condition = delayOf(40 * time.Millisecond)
	other := r.open(t)
	if err := other.SetCondition(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if took := trip(); took < 40*time.Millisecond {
		t.Errorf("a packet took %v, and its delay is 40 ms", took)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); trip() >= 40*time.Millisecond; {
		if time.Now().After(end) {
			t.Fatal("packets still take a detour")
		}
	}
}

// Each chance of a condition is a fraction, and each member draws for itself.
func TestAConditionIsTheOneOfTheAPI(t *testing.T) {
	m := driver.Member{Condition: &api.NetworkCondition{
		Delay: api.Duration(25 * time.Millisecond), Jitter: api.Duration(time.Millisecond), Loss: 1, Duplicate: 2, Corrupt: 3, Reorder: 4, Rate: 100e6, Seed: 7,
	}}
	want := condition.Condition{Delay: 25 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Duplicate: 0.02, Corrupt: 0.03, Reorder: 0.04, BitsPerSecond: 100e6, Seed: 7}
	if got := container.ConditionOf(m); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m.Assignment.Rank = 1
	if got := container.ConditionOf(m); got.Seed == want.Seed {
		t.Error("two members draw the same fates")
	}
}

func delayOf(d time.Duration) *api.NetworkCondition {
	return &api.NetworkCondition{Delay: api.Duration(d)}
}
