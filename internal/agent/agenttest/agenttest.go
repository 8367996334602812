// Package agenttest is what tests of node agents need: pretended members that speak. Start with Speaking.
package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/member"
)

// Driver is the fake driver with members whose agent says that they are ready, and that "runs" jobs at once. Like real members they outlive
// the node's agent and connect again.
type Driver struct {
	*fake.Driver
	ctx context.Context
}

// Speaking lets the members of a driver speak until ctx ends.
func Speaking(ctx context.Context, d *fake.Driver) *Driver { return &Driver{d, ctx} }

// Start starts a member and its agent.
func (d *Driver) Start(ctx context.Context, m driver.Member) error {
	if err := d.Driver.Start(ctx, m); err != nil {
		return err
	}
	let(d.ctx, d, m)
	return nil
}

// VM is Driver for members that can be saved and moved.
type VM struct {
	fake.VM
	ctx context.Context
}

// SpeakingVM lets the members of a driver speak until ctx ends.
func SpeakingVM(ctx context.Context, d fake.VM) *VM { return &VM{d, ctx} }

// Start starts a member and its agent.
func (d *VM) Start(ctx context.Context, m driver.Member) error {
	err := d.VM.Start(ctx, m)
	if err == nil {
		let(d.ctx, d, m)
	}
	return err
}

// Reboot boots a member again, and its agent.
func (d *VM) Reboot(ctx context.Context, m driver.Member, grace time.Duration) error {
	err := d.VM.Reboot(ctx, m, grace)
	if err == nil {
		let(d.ctx, d, m)
	}
	return err
}

// Restore lets a member go on, and its agent.
func (d *VM) Restore(ctx context.Context, m driver.Member, from string) error {
	err := d.VM.Restore(ctx, m, from)
	if err == nil {
		let(d.ctx, d, m)
	}
	return err
}

// Receive lets a member go on that another host sends, and its agent.
func (d *VM) Receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	err := d.VM.Receive(ctx, m, from, conn)
	if err == nil {
		let(d.ctx, d, m)
	}
	return err
}

// TakeBack lets a member go on that was handed over, and its agent.
func (d *VM) TakeBack(ctx context.Context, id string) error {
	if err := d.VM.TakeBack(ctx, id); err != nil {
		return err
	}
	found, err := d.Observe(ctx)
	for _, o := range found {
		if o.ID == id {
			let(d.ctx, d, *o.Member)
		}
	}
	return err
}

// let lets a member speak until it ends.
func let(ctx context.Context, d driver.Driver, m driver.Member) {
	lives, end := context.WithCancel(ctx)
	go func() {
		_, _ = d.Wait(lives, m.Assignment.ID)
		end()
	}()
	instance := fmt.Sprint(time.Now().UnixNano())
	go func() {
		for lives.Err() == nil {
			speak(lives, instance, filepath.Join(m.ControlDir, "agent.sock"))
			select {
			case <-lives.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
}

// speak plays the member agent on one connection.
func speak(ctx context.Context, instance, socket string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	out := json.NewEncoder(conn)
	_ = out.Encode(member.FromMember{Hello: &member.Hello{Instance: instance, Version: member.ProtocolVersion}})
	_ = out.Encode(member.FromMember{Ready: &member.Ready{At: time.Now()}})
	for in := json.NewDecoder(conn); ; {
		var m member.ToMember
		if in.Decode(&m) != nil {
			return
		}
		if m.Jobs == nil {
			continue
		}
		states := []member.JobState{}
		for _, job := range *m.Jobs {
			code, now := 3, time.Now()
			states = append(states, member.JobState{ID: job.ID, Phase: api.JobFailed, ExitCode: &code, StartedAt: &now, EndedAt: &now})
		}
		_ = out.Encode(member.FromMember{Jobs: &states})
	}
}
