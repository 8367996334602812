package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMessengersExchangeWhatTheyAreAskedTo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pair")
	m, err := newMessengers(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- firstMessenger(dir, "127.0.0.1") }()
	go func() { ended <- secondMessenger(dir) }()
	for _, e := range []exchange{
		{Bytes: 8, Count: 10, Batches: 3}, {Bytes: largestMessage, Count: 2, Batches: 2}, {Bytes: 64 << 10, Count: 8, Batches: 2, OneWay: true},
	} {
		if seconds, err := m.measure(e, time.Minute); err != nil || !(seconds > 0) {
			t.Errorf("%+v: got %v, %v", e, seconds, err)
		}
		if got := fromWire(e.wire()); got != e {
			t.Errorf("over the wire %+v became %+v", e, got)
		}
	}
	if err := m.close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a messenger stays when its caller is gone")
		}
	}
}

func TestAMessengerWhoseOtherHalfIsGoneSaysSo(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.Close()
		}
	}()
	conn, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := descriptor(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := receive(fd, make([]byte, 8)); err == nil {
		t.Error("bytes came from nobody")
	}
}

func TestAProcessJoinsTheCPUGroupOfAMember(t *testing.T) {
	for groups, want := range map[string]string{
		"9:name=systemd:/a\n3:cpu,cpuacct:/nearmetal/n1/m\n0::/x\n": "/sys/fs/cgroup/cpu/nearmetal/n1/m/cgroup.procs",
		"4:cpuset:/c\n2:cpu:/nearmetal/m\n0::/\n":                   "/sys/fs/cgroup/cpu/nearmetal/m/cgroup.procs",
		"0::/nearmetal/n1/m\n":                                      "/sys/fs/cgroup/nearmetal/n1/m/cgroup.procs",
		"":                                                          "",
	} {
		if got := cpuGroup(groups); got != want {
			t.Errorf("%q: got %q, want %q", groups, got, want)
		}
	}
}

func TestTheTableAcrossNodesComparesEverySideWithBareProcesses(t *testing.T) {
	times := map[string][]float64{acrossBare: nil, acrossMembers: nil}
	for i := range 12 {
		drift := 1 + 0.1*float64(i)
		times[acrossBare] = append(times[acrossBare], 10e-6*drift)
		times[acrossMembers] = append(times[acrossMembers], 20e-6*drift)
	}
	var b bytes.Buffer
	b.WriteString(acrossTable("ping-pong", exchange{Bytes: 8}, []string{acrossBare, acrossMembers}, times))
	b.WriteString(acrossTable("one way", exchange{Bytes: 1 << 20, OneWay: true}, []string{acrossBare, acrossMembers}, times))
	for _, must := range []string{"12 rounds", "0.500 [0.500, 0.500]", "goal 0.97 not reached", "GB/s"} {
		if !strings.Contains(b.String(), must) {
			t.Errorf("the table lacks %q:\n%s", must, b.String())
		}
	}
}
