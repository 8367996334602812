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
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/recipes"
)

// builtEnvironment is the one whose building and booting is measured.
const builtEnvironment = "debian-mpi"

// buildPairs is how often it is built by each side: a build takes a minute, and differs little from the one before.
const buildPairs = 2

// builds makes the images that machines boot, on a site of its own; if asked to, it measures that beside mmdebstrap and mkfs.erofs by hand.
func builds(ctx context.Context, o options, state string, measured bool, log *slog.Logger, text *bytes.Buffer) (err error) {
	if !measured && o.images != "" {
		return nil
	}
	site, err := startDev(ctx, o, state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.stop()) }()
	build := func(name string, more ...string) (float64, error) {
		begun := time.Now()
		_, err := o.ask(ctx, state, append([]string{"env", "build", name, "--quiet"}, more...)...)
		seconds := time.Since(begun).Seconds()
		log.Info("environment", "name", name, "seconds", seconds, "options", more, "load", load())
		return seconds, err
	}
	if _, err := build("inspect"); err != nil {
		return err
	}
	if _, err := build(builtEnvironment); err != nil || !measured {
		return err
	}
	cache := filepath.Join(filepath.Dir(state), "packages")
	if err := takePackages(ctx, filepath.Join(state, "nodes", "n1", "build-cache"), cache); err != nil {
		return err
	}
	busy := load()
	var ours, hand, ratios, again []float64
	var root int64
	for pair := range buildPairs {
		sides := []func() error{
			func() error {
				seconds, err := build(builtEnvironment, "--force")
				ours = append(ours, seconds)
				return err
			},
			func() error {
				begun := time.Now()
				size, err := imageByHand(ctx, o, cache, filepath.Dir(state))
				hand, root = append(hand, time.Since(begun).Seconds()), size
				log.Info("environment", "by hand", hand[len(hand)-1], "bytes", size, "load", load())
				return err
			},
		}
		if pair%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			if err := side(); err != nil {
				return err
			}
		}
		ratios = append(ratios, ours[pair]/hand[pair])
		seconds, err := build(builtEnvironment)
		if err != nil {
			return err
		}
		again = append(again, seconds)
	}
	manifest, err := builtManifest(ctx, o, state)
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "Environment %s, packages at hand, %d pairs, load %s to %s: seconds, median (lowest to highest)\n", builtEnvironment, buildPairs, busy, load())
	fmt.Fprintf(text, "  nearmetal %s, by hand %s: %s times as long; the same recipe once more %s\n", spread(ours, 1), spread(hand, 1), spread(ratios, 2), spread(again, 2))
	fmt.Fprintf(text, "  root %.1f MiB (by hand %.1f), kernel %.1f MiB, initrd %.1f MiB\n\n", mebibytes(manifest.Root.SizeBytes), mebibytes(root),
		mebibytes(manifest.Metal.Kernel.SizeBytes), mebibytes(manifest.Metal.Initrd.SizeBytes))
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

// takePackages gives the script the packages that the site has fetched, for neither side to wait for a mirror.
func takePackages(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(from); err != nil {
		return nil //nolint:nilerr // the images were built elsewhere; the script fetches them, once
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// imageByHand makes the root of the environment by the script, and returns its size.
func imageByHand(ctx context.Context, o options, cache, dir string) (int64, error) {
	content, ok := recipes.Catalog{}.Shipped(builtEnvironment)
	if !ok {
		return 0, fmt.Errorf("recipe %s does not exist", builtEnvironment)
	}
	r, err := recipe.Parse(content)
	if err != nil {
		return 0, err
	}
	excludes, out := filepath.Join(dir, "excludes"), filepath.Join(dir, "root.erofs")
	if err := os.WriteFile(excludes, []byte(strings.Join(r.Exclude, "\n")+"\n"), 0o644); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.peers, "image.sh"), r.Base.Debian, strings.Join(r.Packages, ","), excludes, cache, out)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("image.sh: %w: %s", err, said[max(0, len(said)-2000):])
	}
	info, err := os.Stat(out)
	if err != nil {
		return 0, err
	}
	return info.Size(), os.Remove(out)
}

// builtManifest is the manifest of the environment as it is now.
func builtManifest(ctx context.Context, o options, state string) (*image.Manifest, error) {
	digest, err := o.digest(ctx, state)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(state, "images", digest.Hex()))
	if err != nil {
		return nil, err
	}
	return image.Decode(data, digest)
}
