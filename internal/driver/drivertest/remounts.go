package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// remounts gives a running member directories and takes them again. A driver may lack the ability.
func remounts(t *testing.T, ctx context.Context, f Fixture) {
	mounter, ok := f.Driver.(driver.Mounter)
	if !ok {
		return
	}
	m := f.Member(t)
	id := m.Assignment.ID
	if err := mounter.Remount(ctx, m); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Remount of an unknown member: %v, want ErrNotFound", err)
	}
	var dirs [2]string
	for i := range dirs {
		dirs[i] = volumeOf(t, m)
	}
	data, deep := driver.Mount{Source: dirs[0], Path: "/volumes/data"}, driver.Mount{Source: dirs[1], Path: "/var/deep/er", ReadOnly: true}
	m.Mounts = []driver.Mount{data}
	must(t, "Start", f.Driver.Start(ctx, m))
	to := func(what string, number int64, mounts ...driver.Mount) {
		t.Helper()
		m.Mounts, m.Assignment.VolumesNumber, m.LayersNumber = mounts, number, 10*number
		m.Assignment.Volumes = nil
		for _, v := range mounts {
			m.Assignment.Volumes = append(m.Assignment.Volumes, api.VolumeClaim{UID: v.Path, Path: v.Path, ReadOnly: v.ReadOnly})
		}
		for range 2 { // again, as after a crash of the agent
			must(t, what, mounter.Remount(ctx, m))
			o := find(t, ctx, f.Driver, id)
			if o.Member == nil || o.Member.Assignment.VolumesNumber != number || o.Member.LayersNumber != 10*number || !slices.Equal(o.Member.Mounts, mounts) || len(o.Member.Assignment.Volumes) != len(mounts) {
				t.Fatalf("%s: its record is %+v", what, o.Member)
			}
		}
	}
	line := func(line string, fails bool) {
		t.Helper()
		if f.Shell == nil {
			return // members of this driver run no programs
		}
		if out, err := f.Shell(t, id, line); (err != nil) != fails {
			t.Errorf("%q: %q (%v)", line, out, err)
		}
	}
	line("echo first > /volumes/data/file", false)
	to("Remount with one more", 1, data, deep)
	line("echo second > /volumes/data/file && test -d /var/deep/er", false)
	line("echo x > /var/deep/er/file", true)
	if pauser, ok := f.Driver.(driver.Pauser); ok {
		must(t, "Pause", pauser.Pause(ctx, id))
		m.Mounts, m.Assignment.VolumesNumber = []driver.Mount{deep}, 2
		if err := mounter.Remount(ctx, m); errors.Is(err, driver.ErrMountLater) {
			if o := find(t, ctx, f.Driver, id); o.Member.Assignment.VolumesNumber != 1 || len(o.Member.Mounts) != 2 {
				t.Errorf("a paused member that can't change its mounts has the record %+v", o.Member)
			}
		} else {
			to("Remount of a paused member", 2, deep)
		}
		must(t, "Resume", pauser.Resume(ctx, id))
	}
	to("Remount with one less", 3, deep)
	line("test -e /volumes/data/file", true)
	before := m
	before.Assignment.VolumesNumber, before.LayersNumber, before.Mounts = 4, 40, nil
	must(t, "Update", f.Driver.Update(ctx, before))
	if o := find(t, ctx, f.Driver, id); o.Member.Assignment.VolumesNumber != 3 || o.Member.LayersNumber != 30 || len(o.Member.Mounts) != 1 {
		t.Errorf("after an Update, which changes no mounts, its record is %+v", o.Member)
	}
	to("Remount with the first again", 5, deep, data)
	line("read first </volumes/data/file && test $first = second", false)
	m.Mounts, m.Assignment.VolumesNumber = nil, 6
	keptOpen(t, ctx, f, m, line)
	to("Remount without any", 6)
	line("test -e /volumes/data/file", true)
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if err := mounter.Remount(ctx, m); err == nil {
		t.Error("an exited member was given other mounts")
	}
}

// keptOpen takes the directory at /volumes/data from a member that has it open: its record stays that of number 5 until it has let go.
func keptOpen(t *testing.T, ctx context.Context, f Fixture, m driver.Member, line func(line string, fails bool)) {
	t.Helper()
	if f.Shell == nil {
		return
	}
	mounter := f.Driver.(driver.Mounter)
	line("cd /volumes/data && { while :; do :; done >/dev/null 2>&1 & echo $! >/tmp/holder; }", false)
	err := mounter.Remount(ctx, m)
	if !errors.Is(err, driver.ErrMountBusy) || !strings.Contains(err.Error(), `files of /volumes/data are still open`) || !strings.Contains(err.Error(), `" (PID `) {
		t.Errorf("Remount while files are open: %v", err)
	}
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.Member.Assignment.VolumesNumber != 5 {
		t.Errorf("after a Remount that failed, its record is %+v", o.Member)
	}
	line("test -e /volumes/data/file && read holder </tmp/holder && kill $holder", false)
	for err != nil && ctx.Err() == nil { // until that has ended
		err = mounter.Remount(ctx, m)
	}
}
