package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) clusterSSH() *cobra.Command {
	var tty, root bool
	cmd := &cobra.Command{
		Use:   "ssh NAME [MEMBER] [-- COMMAND...]",
		Short: "Log in to a member of a cluster",
		Long: `Log in to a member of a cluster, by default the one of rank 0, or run a command there. It uses the system's ssh with a key and a
certificate made for this one time; the connection goes through the server, no port is opened anywhere. Several words are the command as
they stand; a single one is read by the member's shell.

The exit code is that of ssh: the command's, or 255 when there was no connection.`,
		Example: `  nearmetal cluster ssh c1
  nearmetal cluster ssh c1 c1-3 -- tail -n 20 out.log
  nearmetal cluster ssh c1 -- 'grep -c error *.log | sort'`,
		ValidArgsFunction: a.completeClusterMember,
		Args:              func(cmd *cobra.Command, args []string) error { _, _, _, err := sshArgs(cmd, args); return err },
	}
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().BoolVar(&root, "root", false, "log in as root, which only whole machines (stack metal) allow")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, member, command, err := sshArgs(cmd, args)
		if err != nil {
			return err
		}
		if len(command) > 1 {
			command = []string{quoteWords(command)}
		}
		return a.throughSSH(cmd.Context(), "ssh", name, member, func(acc *access) []string {
			var args []string
			if tty {
				args = append(args, "-t")
			}
			if root {
				acc.asRoot()
			}
			return append(append(args, "--", acc.member), command...)
		})
	}
	return passesInterrupts(cmd)
}

// sshArgs tells apart cluster, member and command.
func sshArgs(cmd *cobra.Command, args []string) (name, member string, command []string, err error) {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		args, command = args[:n], args[n:]
		if len(command) == 0 {
			return "", "", nil, usage("there is no command after --; omit it to log in")
		}
	}
	switch {
	case len(args) == 0 || args[0] == "":
		return "", "", nil, usage("name the cluster: '%s'", useLine(cmd))
	case len(args) > 2:
		return "", "", nil, usage("%q is one word too many; a command stands after --: '%s'", args[2], useLine(cmd))
	case len(args) == 2:
		member = args[1]
	}
	return args[0], member, command, nil
}

func (a *app) clusterForward() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forward NAME [MEMBER] LOCAL:REMOTEPORT...",
		Short: "Forward local ports to a member",
		Long: `Forward ports of this machine (127.0.0.1 only) to ports of a member, by default that of rank 0, until Ctrl-C. Connections go through
ssh and the server. A single number is used for both ports.`,
		Example: `  nearmetal cluster forward c1 8888:8888
  nearmetal cluster forward c1 c1-2 9090 8080:80`,
		ValidArgsFunction: a.completeClusterMember,
		Args:              func(_ *cobra.Command, args []string) error { _, _, err := forwardArgs(args); return err },
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		member, ports, err := forwardArgs(args)
		if err != nil {
			return err
		}
		return a.throughSSH(cmd.Context(), "ssh", args[0], member, func(acc *access) []string {
			return forwardOptions(acc.member, ports)
		})
	}
	return passesInterrupts(cmd)
}

// forwarded is a port of this machine that leads to one of a member.
type forwarded struct{ local, remote uint16 }

// forwardOptions are ssh's for so many ports. Its local command runs when all are open: before, nothing could be said.
func forwardOptions(member string, ports []forwarded) []string {
	said := "echo"
	args := []string{"-N", "-o", "ExitOnForwardFailure=yes", "-o", "PermitLocalCommand=yes"}
	for i, p := range ports {
		args = append(args, "-L", fmt.Sprintf("127.0.0.1:%d:localhost:%d", p.local, p.remote))
		if i > 0 {
			said += ","
		}
		said += fmt.Sprintf(" 127.0.0.1:%d leads to %s:%d", p.local, member, p.remote)
	}
	return append(args, "-o", "LocalCommand="+said+" >&2", "--", member)
}

// forwardArgs tells apart the member, when there is one, and the ports.
func forwardArgs(args []string) (member string, ports []forwarded, err error) {
	if len(args) == 0 || args[0] == "" {
		return "", nil, usage("name the cluster and the ports: 'nearmetal cluster forward NAME [MEMBER] LOCAL:REMOTEPORT...'")
	}
	args = args[1:]
	if len(args) > 0 && !strings.Contains(args[0], ":") && strings.Trim(args[0], "0123456789") != "" {
		member, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return "", nil, usage("name the ports to forward, like 8080:80")
	}
	used := map[uint16]bool{}
	for _, arg := range args {
		local, remote, both := strings.Cut(arg, ":")
		if !both {
			remote = local
		}
		p := forwarded{portNumber(local), portNumber(remote)}
		if p.local == 0 || p.remote == 0 {
			return "", nil, usage("%q is not LOCAL:REMOTEPORT; write two port numbers from 1 to 65535, like 8080:80", arg)
		}
		if used[p.local] {
			return "", nil, usage("port %d of this machine is given twice", p.local)
		}
		used[p.local] = true
		ports = append(ports, p)
	}
	return member, ports, nil
}

// portNumber is 0 for what is no port.
func portNumber(text string) uint16 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// sshPort is where members listen for logins.
const sshPort = 22

// clusterConnect is what ssh runs in place of opening a connection.
func (a *app) clusterConnect() *cobra.Command {
	cmd := &cobra.Command{
		Use: "connect NAME MEMBER", Short: "Join standard input and output with the SSH port of a member", Hidden: true,
		Long: "Join standard input and output with the SSH port of a member: what 'cluster ssh' gives to ssh as ProxyCommand.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] == "" || args[1] == "" {
				return usage("name the cluster and the member: '%s'", useLine(cmd))
			}
			return nil
		},
		ValidArgsFunction: a.completeClusterMember,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		tunnel, err := c.ConnectMember(cmd.Context(), args[0], args[1], sshPort)
		if err != nil {
			return err
		}
		defer tunnel.Close()
		go func() {
			<-cmd.Context().Done()
			_ = tunnel.Close() // lets the copying end
		}()
		go func() {
			_, _ = io.Copy(tunnel, a.Streams.In) // what fails here fails below, too
			_ = tunnel.CloseWrite()
		}()
		_, err = io.Copy(a.Streams.Out, tunnel)
		if cmd.Context().Err() != nil {
			return cmd.Context().Err()
		}
		if err != nil {
			return errors.New("the connection to the member broke: " + err.Error())
		}
		return nil
	}
	return cmd
}
