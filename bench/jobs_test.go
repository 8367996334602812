package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

func TestManyJobsHaveEndedWhenEachOfThemHasSucceeded(t *testing.T) {
	mine := map[string]bool{"a": true, "b": true}
	job := func(id string, phase api.JobPhase) api.Job { return api.Job{ID: id, Phase: phase} }
	for _, test := range []struct {
		name string
		all  []api.Job
		left int
		err  string
	}{
		{"both have succeeded", []api.Job{job("a", api.JobSucceeded), job("b", api.JobSucceeded)}, 0, ""},
		{"one waits, one runs", []api.Job{job("a", api.JobPending), job("b", api.JobRunning)}, 2, ""},
		{"another client's job runs", []api.Job{job("a", api.JobSucceeded), job("b", api.JobSucceeded), job("c", api.JobRunning)}, 0, ""},
		{"one has failed", []api.Job{job("a", api.JobSucceeded), job("b", api.JobFailed)}, 0, "job b is failed"},
		{"one is not listed", []api.Job{job("a", api.JobSucceeded), job("c", api.JobSucceeded)}, 0, "1 of 2 jobs are listed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			left, err := unfinished(test.all, mine)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("got error %v, want %q", err, test.err)
			}
			if left != test.left {
				t.Errorf("got %d unfinished jobs, want %d", left, test.left)
			}
		})
	}
}

func TestJobReportsFavourTheSideThatIsFasterInEitherMetric(t *testing.T) {
	var runs []measure.Run
	for pair := range 6 {
		for side, faster := range map[string]float64{slurm: 1, nearmetal: 2} {
			runs = append(runs, measure.Run{Side: side, Pair: pair, Points: []measure.Point{
				{X: 1, Values: map[string]float64{runSeconds: 0.1 / faster}},
				{X: manyJobs, Values: map[string]float64{jobsPerSecond: 50 * faster}},
			}})
		}
	}
	reports, err := jobReports(runs)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		metric string
		x      float64
	}{{runSeconds, 1}, {jobsPerSecond, manyJobs}} {
		got, ok := reports[i].Analysis.Find(want.metric, nearmetal, want.x)
		if !ok || got.Efficiency.Value != 2 {
			t.Errorf("%s at %.0f: got %+v (found: %t), want an efficiency of 2", want.metric, want.x, got.Efficiency, ok)
		}
	}
}

// A fake PATH has only the programs that a test names: the script must need no others to find what is missing.
func TestJobsAreOmittedWithTheNamesOfThePackagesWhenSlurmIsNotInstalled(t *testing.T) {
	all := []string{"munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue"}
	for _, test := range []struct {
		name      string
		installed []string
		want      string
	}{
		{"all is installed", all, ""},
		{"no slurmd", append([]string{"munged", "slurmctld"}, all[3:]...), "jobs beside Slurm omitted: not installed: slurmd (package slurmd); setup/install.sh bench installs them"},
		{"no clients", all[:3], "jobs beside Slurm omitted: not installed: srun (package slurm-client), sbatch (package slurm-client), squeue (package slurm-client); setup/install.sh bench installs them"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := t.TempDir()
			for _, program := range test.installed {
				if err := os.WriteFile(filepath.Join(path, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", path)
			peer := slurmPeer{script: "peers/slurm.sh"}
			absent, err := peer.missing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := withoutSlurm(absent); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}
