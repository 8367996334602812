package fake_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestTheFakeMeetsTheDriverContract(t *testing.T) {
	meetsTheContract(t, fake.New, member)
}

func TestTheFakeOfVirtualMachinesMeetsTheDriverContract(t *testing.T) {
	meetsTheContract(t, fake.NewVM, func(id string) driver.Member {
		m := member(id)
		m.Assignment.Stack, m.Assignment.Ports[0].Kind = api.StackVM, api.PortTAP
		return m
	})
}

func TestTheFakeOfWholeMachinesMeetsTheDriverContract(t *testing.T) {
	meetsTheContract(t, fake.NewMetal, func(id string) driver.Member {
		m := member(id)
		m.Assignment.Stack, m.Assignment.Whole = api.StackMetal, true
		m.Assignment.Ports = append(m.Assignment.Ports, api.PortClaim{Network: "c1.storage", Kind: api.PortVF})
		return m
	})
}

func meetsTheContract[D driver.Driver](t *testing.T, open func(*fake.Host, fabric.Attacher) D, member func(id string) driver.Member) {
	var serial atomic.Int64
	var fixture func(t *testing.T) drivertest.Fixture
	fixture = func(*testing.T) drivertest.Fixture {
		host, ports := fake.NewHost(), &drivertest.Ports{}
		return drivertest.Fixture{
			Other:  fixture,
			Driver: open(host, ports),
			Ports:  ports,
			Reopen: func(*testing.T) driver.Driver { return open(host, ports) },
			Member: func(*testing.T) driver.Member { return member(fmt.Sprintf("c1.m-%d.1", serial.Add(1))) },
			Stubborn: func(m *driver.Member) {
				host.Script(m.Assignment.ID, fake.Behaviour{Stubborn: true})
			},
			End:  func(_ *testing.T, o driver.Observation, code int) { host.End(o.ID, code) },
			Left: func(*testing.T) []string { return host.IDs() },
			Trip: func(_ *testing.T, id string) func() time.Duration {
				return func() time.Duration {
					if c := host.Condition(id); c != nil {
						return c.Delay.Std()
					}
					return 0
				}
			},
			Progress: func(_ *testing.T, id string) int64 { return host.Progress(id) },
			Listen: func(_ *testing.T, id string) int {
				host.Listen(id, 7, func(c net.Conn) { _, _ = io.Copy(c, c) })
				return 7
			},
		}
	}
	drivertest.Run(t, fixture)
}

func TestAScriptedMemberFailsTwiceThenRunsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewHost()
		d := fake.New(host, &drivertest.Ports{})
		full := errors.New("disk full")
		host.Script("", fake.Behaviour{FailStarts: 2, StartError: full, StartDelay: time.Second, ExitAfter: time.Hour, ExitCode: 9})
		m := member("c1.m-0.1")
		for range 2 {
			if err := d.Start(t.Context(), m); !errors.Is(err, full) {
				t.Fatalf("Start: %v, want %v", err, full)
			}
		}
		begin := time.Now()
		if err := d.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		o, err := d.Wait(context.Background(), "c1.m-0.1")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != time.Hour+time.Second {
			t.Errorf("ended after %s, want 1h0m1s", took)
		}
		if o.ExitCode == nil || *o.ExitCode != 9 {
			t.Errorf("exit code %v, want 9", o.ExitCode)
		}
	})
}

func member(id string) driver.Member {
	return driver.Member{Assignment: api.Assignment{ID: id, ClusterUID: "c1", Member: "m", Stack: api.StackContainer, Ports: []api.PortClaim{{Network: "c1", Kind: api.PortVeth}}}}
}
