package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// homeMiB is the length of the file that each side writes and reads.
	homeMiB = 32
	// containerCluster is the cluster of a container beside that of a machine.
	containerCluster = "bench-container"
)

// The sides of homes.
const (
	homeHost      = "host's directory"
	homeContainer = "container's home"
	homeMachine   = "machine's home (NFS)"
)

// homes compares writing and reading a file in a machine's home with a container's, and with the directory on the host.
func (v *virtual) homes(ctx context.Context) (err error) {
	busy := load()
	if err := v.Create(ctx, 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
	if _, err := v.client.CreateCluster(ctx, api.ClusterRequest{Name: containerCluster, Size: 1, Cores: 1, Memory: vmMemory, Environment: builtEnvironment}); err != nil {
		return err
	}
	defer func() {
		_, gone := v.client.DeleteCluster(context.WithoutCancel(ctx), containerCluster)
		err = errors.Join(err, gone)
	}()
	if err := v.reachOf(ctx, containerCluster, api.ClusterReady); err != nil {
		return err
	}
	cluster, err := v.client.Cluster(ctx, containerCluster)
	if err != nil {
		return err
	}
	onHost := filepath.Join(v.work, "state", "home", cluster.UID, "hpc", "host")
	run := map[string]func(command string) (string, error){
		homeHost: func(command string) (string, error) {
			out, err := exec.CommandContext(ctx, "sh", "-ec", strings.ReplaceAll(command, "FILE", onHost)).CombinedOutput()
			return string(out), err
		},
		homeContainer: func(command string) (string, error) {
			return v.printedBy(ctx, containerCluster, shell(strings.ReplaceAll(command, "FILE", "/home/hpc/bench-file")))
		},
		homeMachine: func(command string) (string, error) {
			return v.printedBy(ctx, clusterName, shell(strings.ReplaceAll(command, "FILE", "/home/hpc/bench-file")))
		},
	}
	names := []string{homeHost, homeContainer, homeMachine}
	written, read := map[string][]float64{}, map[string][]float64{}
	for round := range v.o.vmPairs {
		order := slices.Clone(names)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, name := range order {
			out, err := run[name](fmt.Sprintf("dd if=/dev/zero of=FILE bs=1M count=%d conv=fsync 2>&1; dd if=FILE of=/dev/null bs=1M iflag=direct 2>&1; rm FILE", homeMiB))
			if err != nil {
				return fmt.Errorf("%s: %w: %s", name, err, out)
			}
			rates, err := ddRates(out)
			if err != nil || len(rates) != 2 {
				return fmt.Errorf("%s: dd printed %q: %w", name, out, err)
			}
			written[name], read[name] = append(written[name], rates[0]), append(read[name], rates[1])
			v.log.Info("homes", "round", round+1, "of", name, "write_mb_s", rates[0], "read_mb_s", rates[1], "load", load())
		}
	}
	fmt.Fprintf(v.text, "Homes: a file of %d MiB written until it is on disk (fsync), and read past the caches (O_DIRECT), %d rounds in turn, %s, load %s to %s: MB/s, median (lowest to highest)\n",
		homeMiB, v.o.vmPairs, accelerator(v.hand.args), busy, load())
	for _, name := range names {
		fmt.Fprintf(v.text, "  %-22s write %s, read %s\n", name, spread(written[name], 1), spread(read[name], 1))
	}
	for _, base := range []string{homeHost, homeContainer} {
		fmt.Fprintf(v.text, "  machine / %s: write %s, read %s\n", base, ratioText(written[homeMachine], written[base]), ratioText(read[homeMachine], read[base]))
	}
	v.text.WriteString("\n")
	return nil
}

func shell(command string) api.JobRequest {
	return api.JobRequest{Command: []string{"sh", "-ec", command}, Ranks: 1}
}

// ratioText is the median of the ratios of rounds, with its interval.
func ratioText(of, over []float64) string {
	var ratios []float64
	for i := range of {
		ratios = append(ratios, of[i]/over[i])
	}
	e := measure.MedianInterval(ratios, measure.DefaultLevel)
	if !e.Bounded() {
		return fmt.Sprintf("%.3f", e.Value)
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]", e.Value, e.Low, e.High)
}

var ddLine = regexp.MustCompile(`(\d+) bytes .*copied, ([0-9.e-]+) s`)

// ddRates are the rates that dd's words give, in MB/s (10^6).
func ddRates(text string) (rates []float64, err error) {
	for _, found := range ddLine.FindAllStringSubmatch(text, -1) {
		bytes, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			return nil, err
		}
		rates = append(rates, bytes/seconds/1e6)
	}
	return rates, nil
}
