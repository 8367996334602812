package boot

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// slurmDeadline is how long Slurm may take to follow a change of members, and to get a job through.
const slurmDeadline = time.Minute

// Users of Slurm find their commands in a cluster whose environment carries it. Slurm follows the cluster's members.
func TestAClusterWithSlurmRunsItsJobsAndFollowsItsMembers(t *testing.T) {
	s := newNodes(t, "--nodes", "2", "--node-cores", "2")
	s.awaitNode("n2")
	s.build("debian-slurm")
	file := filepath.Join(t.TempDir(), "s.yaml")
	// Two cores a member: one on each node.
	must(t, os.WriteFile(file, []byte("name: s\ngroups:\n- {name: c, size: 2, cores: 1, memory: 256MiB, environment: debian-slurm}\n- {name: plain, size: 1, cores: 1, memory: 256MiB}\n"), 0o600))
	s.run("cluster", "create", "-f", file)

	t.Run("members of the group are nodes once the cluster is ready", func(t *testing.T) {
		s.during(t)
		if got, want := s.in("s", "c-0", "sinfo --noheader --Node --format '%N %P %t %c %m'"), "c-0 c idle 1 256\nc-0 all* idle 1 256\nc-1 c idle 1 256\nc-1 all* idle 1 256\n"; sorted(got) != sorted(want) {
			t.Errorf("sinfo says\n%s, want\n%s", got, want)
		}
		s.wantTasks("srun -N2 hostname", "c-0 c-1")
		s.wantTasks("srun -N2 id -un", "hpc hpc")
	})
	t.Run("its user can't read the key", func(t *testing.T) {
		s.during(t)
		if out, err := s.try("cluster", "ssh", "s", "c-0", "--", "cat", "/etc/nearmetal/munge.key"); err == nil {
			t.Errorf("the user reads the key %s", out)
		}
	})
	t.Run("MPI runs by srun, and by mpirun in an allocation and outside of one", func(t *testing.T) {
		s.during(t)
		ranks := `bash -c 'echo $OMPI_COMM_WORLD_SIZE$PMIX_RANK'`
		s.wantTasks("srun -N2 "+ranks, "0 1")
		s.wantTasks("srun --mpi=pmi2 -N2 bash -c 'echo $PMI_SIZE:$PMI_RANK'", "2:0 2:1")
		s.wantTasks("salloc -Q -N2 mpirun hostname", "c-0 c-1")
		s.wantTasks("mpirun -n 2 --host c-0,c-1 hostname", "c-0 c-1")
		if got := s.saidByRanks("s", 3, "hostname"); len(got) != 3 {
			t.Errorf("an MPI job of the cluster's own ran on %v, want three ranks", got)
		}
	})
	t.Run("a batch job runs, another one is cancelled", func(t *testing.T) {
		s.during(t)
		id := strings.TrimSpace(s.in("s", "c-0", "sbatch --parsable -N2 -o batch.out --wrap 'srun hostname'"))
		s.until(slurmDeadline, "job "+id+" to end", func() bool { return s.slurmJob(id) == "COMPLETED" })
		if got := sorted(s.in("s", "c-1", "cat batch.out")); got != "c-0 c-1" {
			t.Errorf("the job printed %s", got)
		}
		id = strings.TrimSpace(s.in("s", "c-0", "sbatch --parsable --wrap 'sleep 1000'"))
		s.in("s", "c-0", "scancel "+id)
		s.until(slurmDeadline, "job "+id+" to be cancelled", func() bool { return s.slurmJob(id) == "CANCELLED" })
	})
	t.Run("a member that dies is replaced, and its job is queued again", func(t *testing.T) {
		s.during(t)
		id := strings.TrimSpace(s.in("s", "c-0", "sbatch --parsable -w c-1 --wrap 'sleep 1000'"))
		s.until(slurmDeadline, "job "+id+" to run", func() bool { return s.slurmJob(id) == "RUNNING" })
		s.killMember("s", "c-1")
		s.until(slurmDeadline, "job "+id+" to be queued again", func() bool { return s.slurmJob(id) == "PENDING" })
		s.awaitIdle("c-0 c-1")
		s.in("s", "c-0", "scancel "+id)
		s.wantTasks("srun -N2 hostname", "c-0 c-1")
	})
	t.Run("another controller goes on with the queue", func(t *testing.T) {
		s.during(t)
		// Slurm saves its state within seconds of a change; the file's name is Slurm's own.
		id := strings.TrimSpace(s.in("s", "c-0", "sbatch --parsable --begin now+1hour --wrap hostname"))
		s.until(slurmDeadline, "the job to be saved", func() bool { return s.saved(id) })
		s.killMember("s", "c-0")
		s.awaitIdle("c-0 c-1")
		if got := s.slurmJob(id); got != "PENDING" {
			t.Errorf("the job is %q to the new controller, want PENDING", got)
		}
		s.wantTasks("srun -N2 hostname", "c-0 c-1")
	})
	t.Run("members come and go", func(t *testing.T) {
		s.during(t)
		s.run("cluster", "scale", "s", "--group", "c", "--size", "3")
		s.awaitIdle("c-0 c-1 c-2")
		s.wantTasks("srun -N3 hostname", "c-0 c-1 c-2")
		s.run("cluster", "scale", "s", "--group", "c", "--size", "1")
		s.awaitIdle("c-0")
	})
	s.run("cluster", "delete", "s", "--yes")
}

func sorted(words string) string {
	fields := strings.Fields(words)
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// wantTasks runs a shell's words in the member of rank 0 of s and compares what they print, in any order.
func (s *site) wantTasks(words, want string) {
	s.t.Helper()
	if got := sorted(s.in("s", "c-0", words)); got != want {
		s.t.Errorf("%s: printed %q, want %q", words, got, want)
	}
}

// slurmJob is the state of a job, empty while slurmctld does not answer.
func (s *site) slurmJob(id string) string {
	s.t.Helper()
	out, _ := s.try("cluster", "ssh", "s", "c-0", "--", "squeue", "--noheader", "--states=all", "--format=%T", "--jobs="+id)
	return strings.TrimSpace(out)
}

// awaitIdle waits until these, and no others, are the nodes of Slurm, and idle.
func (s *site) awaitIdle(nodes string) {
	s.t.Helper()
	want := ""
	for node := range strings.FieldsSeq(nodes) {
		want += node + " idle\n"
	}
	met := false
	defer func() {
		if !met {
			out, err := s.try("cluster", "ssh", "s", "c-0", "--", "scontrol show node && squeue --states=all")
			s.t.Logf("Slurm says (%v):\n%s", err, out)
		}
	}()
	s.until(slurmDeadline, "nodes "+nodes+" to be idle", func() bool {
		out, err := s.try("cluster", "ssh", "s", "c-0", "--", "sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T")
		return err == nil && out == want
	})
	met = true
}

// saved tells whether slurmctld has a job's script in the state that another one would take over: both are written one after the other.
func (s *site) saved(id string) bool {
	s.t.Helper()
	states, err := filepath.Glob(filepath.Join(s.dir, "home", "*", ".slurm", "*", "*", "job_state"))
	must(s.t, err)
	for _, path := range states {
		state, err := os.Stat(path)
		script, scriptErr := filepath.Glob(filepath.Join(filepath.Dir(path), "hash.*", "job."+id))
		if err == nil && scriptErr == nil && len(script) == 1 {
			made, err := os.Stat(script[0])
			return err == nil && !state.ModTime().Before(made.ModTime())
		}
	}
	return false
}

// killMember kills the first process of a member and waits until another one is ready in its place.
func (s *site) killMember(cluster, member string) {
	s.t.Helper()
	before := s.cluster(cluster)
	files, err := filepath.Glob("/proc/[0-9]*/root/etc/nearmetal/member.json")
	must(s.t, err)
	killed := false
	for _, file := range files {
		process := filepath.Join("/", strings.Split(file, "/")[1], strings.Split(file, "/")[2])
		line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		config, _ := os.ReadFile(file)
		if !strings.HasPrefix(string(line), "/run/nearmetal-member\x00") || !strings.Contains(string(config), `"assignment_id": "`+before.UID+"."+member+".") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		must(s.t, err)
		must(s.t, syscall.Kill(pid, syscall.SIGKILL))
		killed = true
	}
	if !killed {
		s.t.Fatalf("member %s has no first process", member)
	}
	s.until(slurmDeadline, member+" to be replaced", func() bool {
		c := s.cluster(cluster)
		return c.Status.Generation > before.Status.Generation && c.Status.Phase == api.ClusterReady
	})
}
