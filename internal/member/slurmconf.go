package member

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// slurmConf is what the member agent reads in the generated slurm.conf.
type slurmConf struct {
	// controller is the member that runs slurmctld, with its address; without one it is lost, and about to be replaced.
	controller, address string
	// nodes are the addresses of all nodes, by name.
	nodes map[string]string
	// gpus are how many GPUs nodes have, by name.
	gpus map[string]int
}

// parseSlurmConf reads what package contextualization writes, not all that slurm.conf(5) allows.
func parseSlurmConf(text []byte) slurmConf {
	c := slurmConf{nodes: map[string]string{}, gpus: map[string]int{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		fields := map[string]string{}
		for _, field := range strings.Fields(lines.Text()) {
			key, value, _ := strings.Cut(field, "=")
			fields[key] = value
		}
		if host := fields["SlurmctldHost"]; host != "" {
			name, address, _ := strings.Cut(host, "(")
			c.controller, c.address = name, strings.TrimSuffix(address, ")")
		}
		if name := fields["NodeName"]; name != "" {
			c.nodes[name] = fields["NodeAddr"]
			if count, err := strconv.Atoi(strings.TrimPrefix(fields["Gres"], "gpu:")); err == nil {
				c.gpus[name] = count
			}
		}
	}
	return c
}

// gone are the nodes of c that next does not have, or has in another's place, sorted.
func (c slurmConf) gone(next slurmConf) []string {
	var names []string
	for _, name := range sortedKeys(c.nodes) {
		if next.nodes[name] != c.nodes[name] {
			names = append(names, name)
		}
	}
	return names
}

// nodeProblem says why slurmctld runs no job on the node that "scontrol show node --oneliner" printed, nil when it would. That somebody drains it is
// no problem.
func nodeProblem(said string) error {
	_, state, _ := strings.Cut(said, " State=")
	state, _, _ = strings.Cut(state, " ")
	if state == "" {
		return fmt.Errorf("slurmctld does not know this node: %s", strings.TrimSpace(said))
	}
	for _, bad := range []string{"UNKNOWN", "DOWN", "NOT_RESPONDING", "INVAL", "*"} {
		if strings.Contains(state, bad) {
			return fmt.Errorf("slurmd is not registered with slurmctld: the node is %s", state)
		}
	}
	return nil
}
