package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/memberbin"
)

const (
	// diskRounds is how often each side is measured, diskGoal how much longer a disk may take than one that qemu-nbd serves.
	diskRounds = 8
	diskGoal   = 1.05
	// diskBytes is the size of the image, which stays in memory.
	diskBytes = 256 << 20
)

// diskWorks are what QEMU does to a disk, as arguments of "qemu-img bench": 256 MiB in requests of 128 KiB, 16 at once, and 2,000 blocks that are flushed one by one.
var diskWorks = []struct {
	name string
	args []string
}{
	{"write", []string{"-w", "-c", "2048", "-s", "131072", "-d", "16", "--flush-interval", "256"}},
	{"read", []string{"-c", "2048", "-s", "131072", "-d", "16"}},
	{"flushed blocks", []string{"-w", "-c", "2000", "-s", "4096", "-d", "1", "--flush-interval", "1"}},
}

// disks compares an image that package diskserver serves to QEMU with the same image served by qemu-nbd.
func (v *volumeRun) disks(ctx context.Context) (err error) {
	const byHand, product = "qemu-nbd", "nearmetal"
	files, err := memberbin.Install(v.bare)
	if err != nil {
		return err
	}
	image, dir, socket := filepath.Join(v.bare, "image"), filepath.Join(v.bare, "disk"), filepath.Join(v.bare, "nbd.sock")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskBytes)); err != nil {
		return err
	}
	serve := map[string]func() (end func() error, at string, err error){
		product: func() (func() error, string, error) {
			s := diskserver.Serve{Program: files.Binary, Dir: dir, Image: image, UserIDs: api.IDRange{First: 1 << 20, Count: 1 << 16}}
			return func() error { return diskserver.End(context.WithoutCancel(ctx), dir) }, diskserver.Socket(dir), s.Ensure(ctx)
		},
		byHand: func() (func() error, string, error) {
			cmd := exec.CommandContext(ctx, "qemu-nbd", "-f", "raw", "-x", "disk", "-t", "-k", socket, "--cache=writeback", "--aio=threads", image)
			if err := cmd.Start(); err != nil {
				return nil, "", err
			}
			end := func() error {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // which says that it was killed
				return os.Remove(socket)
			}
			return end, socket, awaitSocket(ctx, socket)
		},
	}
	took := map[string]map[string][]float64{byHand: {}, product: {}}
	busy := load()
	for round := range diskRounds + 1 { // the first is to get warm
		order := []string{byHand, product}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, name := range order {
			seconds, err := benchDisk(ctx, serve[name])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			v.log.Info("disks", "round", round, "of", name, "seconds", seconds, "load", load())
			for work, s := range seconds {
				if round > 0 {
					took[name][work] = append(took[name][work], s)
				}
			}
		}
	}
	fmt.Fprintf(v.text, "Block volumes: QEMU writes and reads %d MiB by NBD, and flushes 2,000 blocks one by one, of an image that is served by Nearmetal and by qemu-nbd; %d rounds in turn, load %s to %s: seconds, median (lowest to highest)\n",
		diskBytes>>20, diskRounds, busy, load())
	for _, work := range diskWorks {
		fmt.Fprintf(v.text, "  %-15s qemu-nbd %s, nearmetal %s, nearmetal / qemu-nbd, goal at most %.2f: %s\n", work.name,
			spread(took[byHand][work.name], 3), spread(took[product][work.name], 3), diskGoal, ratioText(took[product][work.name], took[byHand][work.name]))
	}
	fmt.Fprintln(v.text)
	return nil
}

// awaitSocket waits until a socket is there.
func awaitSocket(ctx context.Context, path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

var benchSeconds = regexp.MustCompile(`Run completed in ([0-9.]+) seconds`)

// benchDisk serves an image, and returns how many seconds each work took.
func benchDisk(ctx context.Context, serve func() (func() error, string, error)) (seconds map[string]float64, err error) {
	end, at, err := serve()
	if end != nil {
		defer func() { err = errors.Join(err, end()) }()
	}
	if err != nil {
		return nil, err
	}
	seconds = map[string]float64{}
	for _, work := range diskWorks {
		args := append([]string{"bench", "-f", "raw", "-t", "none"}, work.args...)
		out, err := exec.CommandContext(ctx, "qemu-img", append(args, "nbd+unix:///disk?socket="+at)...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", work.name, err, out)
		}
		found := benchSeconds.FindSubmatch(out)
		if found == nil {
			return nil, fmt.Errorf("%s printed %q", work.name, out)
		}
		if seconds[work.name], err = strconv.ParseFloat(string(found[1]), 64); err != nil {
			return nil, err
		}
	}
	return seconds, nil
}
