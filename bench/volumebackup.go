package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
)

const (
	// backupRounds is how often each side is measured, backupGoal how much longer a backup may take than tar and zstd by hand.
	backupRounds = 4
	backupGoal   = 1.05
)

// backupFill makes 1 GiB: half of it can't be compressed, and some of it is in small files.
var backupFill = fmt.Sprintf(`cd /volumes/bench; head -c 512M /dev/urandom >random; yes "a line of text" | head -c 480M >text
mkdir small; i=0; while [ $i -lt %d ]; do head -c 16k text >small/$i; i=$((i+1)); done; sync -f .; echo done`, smallFiles)

// backups compares a backup of a volume, and a volume of a backup, with tar and zstd by hand on the file system that the pool is on.
func (v *volumeRun) backups(ctx context.Context) error {
	const byHand, product = "tar and zstd", "nearmetal"
	file, unpacked := filepath.Join(v.bare, "backup"), filepath.Join(v.bare, "unpacked")
	steps := map[string]map[string]func() error{
		byHand: {
			"backup": func() error {
				return v.byHand(ctx, "tar --xattrs --acls -C unpacked -cf - . | zstd -q -T2 >by-hand; sync by-hand")
			},
			"restore": func() error {
				return v.byHand(ctx, "mkdir again; zstd -dcq backup | tar --xattrs --acls -C again -xpf -; sync -f again")
			},
		},
		product: {
			"backup":  func() error { return v.backUp(ctx, file) },
			"restore": func() error { return v.makeOfBackup(ctx, "again", file) },
		},
	}
	took := map[string]map[string][]float64{byHand: {}, product: {}}
	err := v.with(ctx, 2<<30, func() error {
		if out, err := v.printedBy(ctx, clusterName, shell(backupFill)); err != nil || out != "done\n" {
			return fmt.Errorf("making files: %w: %q", err, out)
		}
		if err := errors.Join(v.backUp(ctx, file), v.byHand(ctx, "mkdir unpacked; zstd -dcq backup | tar --xattrs --acls -C unpacked -xpf -")); err != nil {
			return err
		}
		for round := range backupRounds + 1 { // the first is to get warm
			order := []string{byHand, product}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				for _, step := range []string{"backup", "restore"} {
					begun := time.Now()
					if err := steps[name][step](); err != nil {
						return fmt.Errorf("%s, %s: %w", name, step, err)
					}
					if round > 0 {
						took[name][step] = append(took[name][step], time.Since(begun).Seconds())
					}
					v.log.Info("backups", "round", round, "of", name, "step", step, "s", time.Since(begun).Seconds(), "load", load())
				}
				if err := v.byHand(ctx, "rm -rf again by-hand"); err != nil {
					return err
				}
				if name == product {
					if err := v.purgeVolume(ctx, "again"); err != nil {
						return err
					}
				}
			}
		}
		return os.RemoveAll(unpacked)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "Backups: 1 GiB with %d small files to a file and back, through the API, and by hand with tar and zstd (2 threads); %d rounds in turn: seconds, median (lowest to highest)\n",
		smallFiles, backupRounds)
	for _, name := range []string{byHand, product} {
		fmt.Fprintf(v.text, "  %-20s backup %s, a volume of it %s\n", name, spread(took[name]["backup"], 2), spread(took[name]["restore"], 2))
	}
	fmt.Fprintf(v.text, "  nearmetal / by hand, goal at most %.2f: backup %s, a volume of it %s\n\n", backupGoal,
		ratioText(took[product]["backup"], took[byHand]["backup"]), ratioText(took[product]["restore"], took[byHand]["restore"]))
	return nil
}

// byHand runs a line of shell where the pool is.
func (v *volumeRun) byHand(ctx context.Context, line string) error {
	cmd := exec.CommandContext(ctx, "bash", "-ec", "set -o pipefail; "+line)
	cmd.Dir = v.bare
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// backUp writes a backup of the volume to a file.
func (v *volumeRun) backUp(ctx context.Context, path string) (err error) {
	stream, err := v.client.BackUpVolume(ctx, volumeName, "")
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return errors.Join(err, stream.Close())
	}
	var tail archive.Tail
	_, err = io.Copy(io.MultiWriter(file, &tail), stream)
	if err == nil {
		_, err = tail.Trailer()
	}
	return errors.Join(err, file.Sync(), file.Close(), stream.Close())
}

// makeOfBackup makes a volume of a backup, and waits until it is ready.
func (v *volumeRun) makeOfBackup(ctx context.Context, name, path string) error {
	if _, err := v.client.CreateVolume(ctx, api.VolumeRequest{Name: name, Size: 2 << 30, FromBackup: true}); err != nil {
		return err
	}
	err := v.await(ctx, name, func(s api.VolumeStatus, err error) (bool, error) { return s.Import != nil, err })
	if err != nil {
		return err
	}
	stream, err := v.client.SendVolumeContent(ctx, name)
	if err != nil {
		return err
	}
	defer stream.Close()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(stream, file); err != nil {
		return err
	}
	if err := stream.CloseWrite(); err != nil {
		return err
	}
	var answer archive.Tail
	if _, err := io.Copy(&answer, stream); err != nil {
		return err
	}
	if _, err := answer.Trailer(); err != nil {
		return err
	}
	return v.await(ctx, name, func(s api.VolumeStatus, err error) (bool, error) { return s.Phase == api.VolumeReady, err })
}
