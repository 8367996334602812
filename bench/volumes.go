package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// volumeRounds is how often each side is measured.
	volumeRounds = 6
	// volumeGoal is how much longer a member may take on a volume than a process takes on the file system that the pool is on.
	volumeGoal = 1.05
	// volumeMiB is the length of the file that is written and read, smallFiles the number of small files that are made, read and removed.
	volumeMiB, smallFiles = 256, 2000
	// volumeSize is the size of volumes that are snapshotted. One of them holds manyFiles.
	volumeSize, manyFiles = 10 << 30, 200_000
	volumeName            = "bench"
)

// volumeWork prints how many nanoseconds each kind of work took, in the directory that it runs in.
var volumeWork = fmt.Sprintf(`
lap() { now=$(date +%%s%%N); echo $1 $((now - last)); last=$now; }
last=$(date +%%s%%N)
dd if=/dev/zero of=file bs=1M count=%d conv=fsync 2>/dev/null; lap write
dd if=file of=/dev/null bs=1M iflag=direct 2>/dev/null; lap read
rm file; mkdir small; last=$(date +%%s%%N)
i=0; while [ $i -lt %d ]; do echo $i >small/$i; i=$((i+1)); done; cat small/* >/dev/null; ls -l small >/dev/null; rm -r small; lap files
`, volumeMiB, smallFiles)

// volumeWorks are the kinds of work, in order.
var volumeWorks = []string{"write", "read", "files"}

var lapLine = regexp.MustCompile(`(?m)^([a-z]+) (\d+)$`)

// laps reads what volumeWork printed, in seconds.
func laps(out string) (map[string]float64, error) {
	took := map[string]float64{}
	for _, m := range lapLine.FindAllStringSubmatch(out, -1) {
		ns, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		took[m[1]] = ns / 1e9
	}
	if len(took) != len(volumeWorks) {
		return nil, fmt.Errorf("the work printed %q", out)
	}
	return took, nil
}

// volumes compares work on a volume in a member with the same on the file system beneath, and what is done to whole volumes with few files and many.
func volumes(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	dir := filepath.Join(work, "volumes")
	dev, err := startSite(ctx, o.nearmetal, filepath.Join(dir, "state"), 1, 1, 1<<30)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.stop()) }()
	v := &volumeRun{site: dev, log: log, text: text, bare: filepath.Join(dir, "bare")}
	if err := os.Mkdir(v.bare, 0o755); err != nil {
		return err
	}
	if err := v.inMembers(ctx); err != nil {
		return err
	}
	if err := v.disks(ctx); err != nil {
		return err
	}
	if err := v.backups(ctx); err != nil {
		return err
	}
	return v.whole(ctx)
}

type volumeRun struct {
	*site
	log  *slog.Logger
	text *bytes.Buffer
	// bare is a directory on the file system that the pool is on.
	bare string
}

// with makes a volume and a cluster that has it, calls f, and removes both.
func (v *volumeRun) with(ctx context.Context, size api.Bytes, f func() error) (err error) {
	if err := v.makeVolume(ctx, api.VolumeRequest{Name: volumeName, Size: size}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.purgeVolume(context.WithoutCancel(ctx), volumeName)) }()
	request := api.ClusterRequest{Name: clusterName, Size: 1, Cores: 1, Memory: v.memory, Volumes: []api.VolumeAttachment{{Name: volumeName, Path: "/volumes/bench"}}}
	if _, err := v.client.CreateCluster(ctx, request); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
	if err := v.reach(ctx, api.ClusterReady); err != nil {
		return err
	}
	return f()
}

func (v *volumeRun) inMembers(ctx context.Context) error {
	const bare, member = "file system beneath", "member's volume"
	took := map[string]map[string][]float64{bare: {}, member: {}}
	busy := load()
	err := v.with(ctx, 1<<30, func() error {
		run := map[string]func() (string, error){
			bare: func() (string, error) {
				cmd := exec.CommandContext(ctx, "sh", "-ec", volumeWork)
				cmd.Dir = v.bare
				out, err := cmd.CombinedOutput()
				return string(out), err
			},
			member: func() (string, error) { return v.printedBy(ctx, clusterName, shell("cd /volumes/bench"+volumeWork)) },
		}
		for round := range volumeRounds + 1 { // the first is to get warm
			order := []string{bare, member}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				out, err := run[name]()
				if err != nil {
					return fmt.Errorf("%s: %w: %s", name, err, out)
				}
				seconds, err := laps(out)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				v.log.Info("volumes", "round", round, "of", name, "write_s", seconds["write"], "read_s", seconds["read"], "files_s", seconds["files"], "load", load())
				if round == 0 {
					continue
				}
				for _, kind := range volumeWorks {
					took[name][kind] = append(took[name][kind], seconds[kind])
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "Volumes: %d MiB written until they are on disk (fsync), read past the caches (O_DIRECT), and %d small files made, read, listed and removed; %d rounds in turn, load %s to %s: seconds, median (lowest to highest)\n",
		volumeMiB, smallFiles, volumeRounds, busy, load())
	for _, name := range []string{bare, member} {
		fmt.Fprintf(v.text, "  %-20s write %s, read %s, small files %s\n", name, spread(took[name]["write"], 3), spread(took[name]["read"], 3), spread(took[name]["files"], 3))
	}
	fmt.Fprintf(v.text, "  member / file system beneath, goal at most %.2f: write %s, read %s, small files %s\n\n", volumeGoal,
		ratioText(took[member]["write"], took[bare]["write"]), ratioText(took[member]["read"], took[bare]["read"]), ratioText(took[member]["files"], took[bare]["files"]))
	return nil
}

// whole measures what is done to whole volumes: one that is empty, and one with many files.
func (v *volumeRun) whole(ctx context.Context) error {
	steps := []string{"create", "snapshot", "clone", "delete clone", "delete snapshot"}
	took := map[int]map[string][]float64{0: {}, manyFiles: {}}
	for _, files := range []int{0, manyFiles} {
		err := v.with(ctx, volumeSize, func() error {
			if files > 0 {
				v.log.Info("volumes: making files", "count", files)
				fill := fmt.Sprintf("cd /volumes/bench; i=0; while [ $i -lt %d ]; do mkdir d$i; j=0; while [ $j -lt 1000 ]; do echo $j >d$i/$j; j=$((j+1)); done; i=$((i+1)); done; sync -f .; ls -U . | wc -l", files/1000)
				if out, err := v.printedBy(ctx, clusterName, shell(fill)); err != nil || out != fmt.Sprintf("%d\n", files/1000) {
					return fmt.Errorf("making files: %w: %q", err, out)
				}
			}
			for round := range volumeRounds {
				for _, step := range []struct {
					name string
					do   func() error
				}{
					{"create", func() error { return v.makeVolume(ctx, api.VolumeRequest{Name: "empty", Size: volumeSize}) }},
					{"", func() error { return v.purgeVolume(ctx, "empty") }},
					{"snapshot", func() error { return v.snapshot(ctx, "s") }},
					{"clone", func() error { return v.makeVolume(ctx, api.VolumeRequest{Name: "clone", From: volumeName + "@s"}) }},
					{"delete clone", func() error { return v.purgeVolume(ctx, "clone") }},
					{"delete snapshot", func() error { return v.dropSnapshot(ctx, "s") }},
				} {
					begun := time.Now()
					if err := step.do(); err != nil {
						return fmt.Errorf("%s: %w", step.name, err)
					}
					took[files][step.name] = append(took[files][step.name], time.Since(begun).Seconds())
				}
				v.log.Info("whole volumes", "round", round+1, "files", files, "load", load())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(v.text, "Volumes of 10 GiB, without files and with %d, through the API, %d rounds: seconds, median (lowest to highest), and the ratio of medians\n", manyFiles, volumeRounds)
	for _, step := range steps {
		few, many := took[0][step], took[manyFiles][step]
		fmt.Fprintf(v.text, "  %-16s %s, %s: %s\n", step, spread(few, 3), spread(many, 3), ratioText(many, few))
	}
	v.text.WriteString("\n")
	return nil
}

// volumeWait is between two looks at a volume.
const volumeWait = 5 * time.Millisecond

// await looks at a volume until something holds.
func (v *volumeRun) await(ctx context.Context, name string, holds func(api.VolumeStatus, error) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ticks := time.NewTicker(volumeWait)
	defer ticks.Stop()
	for {
		done, err := holds(v.client.Volume(ctx, name))
		if done || err != nil {
			return err
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("volume %s: %w", name, ctx.Err())
		}
	}
}

func (v *volumeRun) makeVolume(ctx context.Context, request api.VolumeRequest) error {
	if _, err := v.client.CreateVolume(ctx, request); err != nil {
		return err
	}
	return v.await(ctx, request.Name, func(s api.VolumeStatus, err error) (bool, error) {
		if err == nil && s.Message != "" && s.Phase != api.VolumeReady && s.Phase != api.VolumeCreating {
			err = errors.New(s.Message)
		}
		return s.Phase == api.VolumeReady, err
	})
}

func (v *volumeRun) purgeVolume(ctx context.Context, name string) error {
	if _, err := v.client.DeleteVolume(ctx, name, true); err != nil {
		return err
	}
	return v.await(ctx, name, func(_ api.VolumeStatus, err error) (bool, error) {
		if gone(err) {
			return true, nil
		}
		return false, err
	})
}

func (v *volumeRun) snapshot(ctx context.Context, name string) error {
	if _, err := v.client.CreateVolumeSnapshot(ctx, volumeName, name); err != nil {
		return err
	}
	return v.await(ctx, volumeName, func(s api.VolumeStatus, err error) (bool, error) {
		return slices.ContainsFunc(s.Snapshots, func(has api.VolumeSnapshot) bool { return has.Name == name && has.Ready }), err
	})
}

func (v *volumeRun) dropSnapshot(ctx context.Context, name string) error {
	if _, err := v.client.DeleteVolumeSnapshot(ctx, volumeName, name); err != nil {
		return err
	}
	return v.await(ctx, volumeName, func(s api.VolumeStatus, err error) (bool, error) {
		return !slices.ContainsFunc(s.Snapshots, func(has api.VolumeSnapshot) bool { return has.Name == name }), err
	})
}
