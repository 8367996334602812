package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/adler32"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// analysis takes the place of a Python with uproot: it reads all of the file, and finds its size.
const analysis = `#!/bin/sh
file=$3
case $file in *.urls:*) file=$(sed -n "$((${file##*:} + 1))p" "${file%:*}");; esac
echo ready
read -r go || exit 1
before=$(cat /sys/class/net/eth0/statistics/rx_bytes)
began=$(date +%s%N)
case $file in root:*) xrdcp -s -f "$file" /tmp/read.$$ || exit 1; file=/tmp/read.$$;; esac
size=$(wc -c < "$file")
ended=$(date +%s%N)
rm -f /tmp/read.$$
echo "{\"received\": $(($(cat /sys/class/net/eth0/statistics/rx_bytes) - before)), \"kept\": $size, \"sum_pt\": 1, \"seconds\": $(((ended - began) / 1000 + 1))e-6}"
`

// The jobs of the study read in members, by the ways of the cluster's datasets, and under its condition.
func TestAStudyRunsItsJobsInMembersOfACluster(t *testing.T) {
	program(t, ordinary)
	for _, name := range []string{"xrootd", "xrdcp", "setpriv", "python3"} {
		needs.Program(t, name)
	}
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	host, adler := s.origin(t.TempDir(), 2<<20)
	source := func(name string) string {
		return fmt.Sprintf("root://%s//%s,adler32=%s,size=%d", host, name, adler, 2<<20)
	}
	s.must("dataset", "add", "far", "--file", source("events.root"))
	s.must("dataset", "add", "copy", "--file", source("events.root"))
	cached := []string{"dataset", "add", "cached"}
	for i := range 6 {
		cached = append(cached, "--file", source(fmt.Sprintf("%d.root", i)))
	}
	s.must(cached...)
	s.must("cluster", "create", "c1", "--size", "2", "--memory", "256MiB", "--egress", "--dataset", "copy", "--dataset", "far:stream", "--dataset", "cached:cached", "--timeout", "2m")
	path := filepath.Join(t.TempDir(), "analysis")
	if err := os.WriteFile(path, []byte(analysis), 0o755); err != nil {
		t.Fatal(err)
	}
	s.must("cp", path, "c1:")
	out := filepath.Join(t.TempDir(), "out")
	s.must("measure", "remote-data", "--cluster", "c1", "--far", "origin", "--python", "./analysis", "--out", out, "--rounds", "2", "--delay", "40ms", "--jobs", "2", "--members", "1,2")

	data, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Experiment measure.Experiment `json:"experiment"`
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for _, r := range report.Experiment.Runs {
		runs[r.Side]++
		if len(r.Points) != 2 {
			t.Fatalf("%s has the points %+v", r.Side, r.Points)
		}
		for _, p := range r.Points {
			if trip, seen := p.Values["round_trip_ms"]; seen && trip < 40 || !seen && r.Side == "streamed" { // a job may be quicker than the first
				t.Errorf("%s: a round trip of %.1f ms within a delay of 40 ms", r.Side, trip)
			}
			mb, least := p.Values["wire_mb"], 2.0
			if r.Side == "streamed" {
				least = 4 // two jobs
			}
			if none := r.Side == "near" || r.Side == "warm cache"; none && mb > 0 || !none && mb < least {
				t.Errorf("%s, at %v: %v MB came over the network", r.Side, p.X, mb)
			}
		}
	}
	for _, side := range []string{"near", "copied", "streamed", "cold cache", "warm cache"} {
		if runs[side] != 2 {
			t.Errorf("%d runs of %s, want 2", runs[side], side)
		}
	}
	var c api.Cluster
	if s.mustJSON(&c, "cluster", "show", "origin"); c.Status.Condition != nil && c.Status.Condition.State != api.ConditionClearing {
		t.Errorf("the study left the condition %+v", c.Status.Condition)
	}
	s.must("cluster", "delete", "c1", "origin", "--yes")
	s.must("dataset", "delete", "far", "copy", "cached")
	s.must("address", "release", host)
}

// serve serves a file under several names by XRootD, as the user of a member.
const serve = `set -e
mkdir -p /tmp/xrd/files /tmp/xrd/admin
mv events.root /tmp/xrd/files
for i in 0 1 2 3 4 5; do ln /tmp/xrd/files/events.root /tmp/xrd/files/$i.root; done
printf 'xrd.port 1094\nxrd.network nodnr\nall.export / r/o\noss.localroot /tmp/xrd/files\nall.adminpath /tmp/xrd/admin\nall.pidpath /tmp/xrd/admin\n' > /tmp/xrd/cfg
exec xrootd -c /tmp/xrd/cfg
`

// origin serves a file from a member of cluster origin, which is on a node of its own. It returns the address at which others reach it, and the file's
// checksum.
func (s *site) origin(dir string, bytes int) (address, adler string) {
	s.t.Helper()
	content := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{5}).Read(content)
	events, script := filepath.Join(dir, "events.root"), filepath.Join(dir, "serve.sh")
	if err := errors.Join(os.WriteFile(events, content, 0o644), os.WriteFile(script, []byte(serve), 0o644)); err != nil {
		s.t.Fatal(err)
	}
	c := s.cluster("origin", 1, "--egress")
	s.must("node", "drain", c.Status.Members[0].Node)
	var a api.FloatingAddressStatus
	s.mustJSON(&a, "address", "allocate")
	s.must("address", "assign", a.Address.String(), "origin/origin-0")
	s.must("cp", events, script, "origin:")
	s.must("run", "origin", "--detach", "--", "sh", "serve.sh")
	s.eventually(time.Minute, "the server of files to listen", func() bool {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(a.Address.String(), "1094"), time.Second)
		return err == nil && conn.Close() == nil
	})
	return a.Address.String(), fmt.Sprintf("%08x", adler32.Checksum(content))
}
