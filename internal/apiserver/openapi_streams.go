package apiserver

import (
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
)

// documentStreams adds the plain handlers to the document.
func (s *Server) documentStreams() {
	text := &huma.Schema{Type: huma.TypeString}
	number := &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: new(float64)}
	boolean := &huma.Schema{Type: huma.TypeBoolean}
	name := &huma.Param{Name: "name", In: "path", Required: true, Schema: text, Description: "Name of the cluster"}
	member := &huma.Param{Name: "member", In: "path", Required: true, Schema: text, Description: "Name of the member"}
	id := &huma.Param{Name: "id", In: "path", Required: true, Schema: text, Description: "ID of the job"}
	last := &huma.Param{Name: "Last-Event-ID", In: "header", Schema: number, Description: "id of the last event received; the stream continues after it"}
	watch := "Server-sent events. First every cluster as it is (`event: cluster`, data a Cluster), then `event: sync`, then changes as they come: " +
		"`event: cluster` with the whole cluster as it became, `event: deleted` with the cluster as it last was. The `id` is a revision; " +
		"resuming repeats the changes at that revision. 410 when the changes after it are no longer kept."
	s.documentStream("/v1/watch", "watch-clusters", "Watch all clusters", watch, []*huma.Param{last}, sseOf("Cluster"), codeHistoryGone)
	s.documentStream("/v1/clusters/{name}/watch", "watch-cluster", "Watch a cluster", watch+" The stream ends when the cluster is gone.",
		[]*huma.Param{name, last}, sseOf("Cluster"), codeNoCluster, codeHistoryGone)
	s.documentStream("/v1/changes", "watch-changes", "Watch objects of all kinds",
		"Server-sent events that report which objects change, not how: request an object to see it. First `event: sync`; an object read after it is "+
			"not older than the watch. Then `event: put` for an object that was made or changed and `event: delete` for one that is gone, data a Change. "+
			"Only objects visible to the token are reported. The `id` is a revision; resuming repeats the changes at that revision. 410 when the "+
			"changes after it are no longer kept: list the objects, and watch again without `Last-Event-ID`. A client that does not read is "+
			"disconnected. Comments keep an idle stream alive.",
		[]*huma.Param{
			last,
			{Name: "kind", In: "query", Schema: words(api.Kinds()...), Description: "Only objects of this kind"},
			{Name: "name", In: "query", Schema: text, Description: "Only objects with this name or ID"},
			{Name: "project", In: "query", Schema: text, Description: "Only objects of this project"},
		}, sseOf("Change"), codeNoProject, codeHistoryGone)
	s.schema(reflect.TypeFor[api.Change]())
	events := sseOf("Event")
	events["application/json"] = &huma.MediaType{Schema: s.schema(reflect.TypeFor[api.List[api.Event]]())}
	s.documentStream("/v1/clusters/{name}/events", "list-events", "List or follow the events of a cluster",
		"The kept events, the oldest first. With `watch`, or when `text/event-stream` is accepted, server-sent events (`event: event`, data an "+
			"Event, id its `seq`) that go on until the cluster is gone. A deleted cluster's events stay until its name is used again.",
		[]*huma.Param{
			name, last,
			{Name: "after", In: "query", Schema: number, Description: "Only events with a greater seq"},
			{Name: "limit", In: "query", Schema: number, Description: "At most this many, the oldest of them; 0: all. Not for a stream"},
			{Name: "watch", In: "query", Schema: boolean, Description: "Go on as events come"},
		}, events, codeNoCluster, codeHistoryGone)
	s.documentStream("/v1/jobs/{id}/log", "get-job-log", "Read or follow a job's output",
		"The output as plain bytes, standard output and error as they came. With `follow` the answer goes on until the job has ended.",
		[]*huma.Param{
			id,
			{Name: "offset", In: "query", Schema: number, Description: "Omit this many bytes at the beginning"},
			{Name: "follow", In: "query", Schema: boolean, Description: "Go on until the job has ended, or is being run again"},
			{Name: "attempt", In: "query", Schema: number, Description: "Which attempt of a job that was run again, 0 the first; the newest by default"},
		}, map[string]*huma.MediaType{"text/plain": {Schema: text}}, codeNoJob, codeLogRemoved)
	s.documentStream("/v1/clusters/{name}/members/{member}/connect", "connect-member", "Open a byte stream to a member's SSH server",
		"HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. Answered by 101, the connection is then the stream; each direction "+
			"may be closed by itself.",
		[]*huma.Param{name, member, {Name: "port", In: "query", Schema: number, Description: "22, the only one"}},
		nil, codeNoCluster, codeNoMember, codeUpgrade, codeUnreachable)
	s.documentStream("/v1/clusters/{name}/members/{member}/console", "connect-member-console", "Open a byte stream to a member's serial console",
		"For members of stack `vm`. HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. Answered by 101, the connection is then the "+
			"stream: first the end of what the machine has printed, then what it prints. What the client sends is typed if `write` is given.",
		[]*huma.Param{
			name, member,
			{Name: "write", In: "query", Schema: boolean, Description: "Type, too. One client does at a time: 409 while another does"},
			{Name: "force", In: "query", Schema: boolean, Description: "With `write`: disconnect a client that types"},
			{Name: "kept_only", In: "query", Schema: boolean, Description: "End after what the machine has printed so far"},
		},
		nil, codeNoCluster, codeNoMember, codeNoMemberConsole, codeConsoleInUse, codeUpgrade, codeUnreachable)
	s.documentStream("/v1/clusters/{name}/members/{member}/display", "connect-member-display", "Open a byte stream to a member's display",
		"For virtual machines whose group has `display`. HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. Answered by 101, the "+
			"connection is then the stream: that of a VNC server without a password (RFC 6143).",
		[]*huma.Param{name, member}, nil, codeNoCluster, codeNoMember, codeNoDisplay, codeUpgrade, codeUnreachable)
	s.documentVolumeStreams()
	s.documentUsage()
	s.documentMetrics()
	s.documentBuildLog()
	node := &huma.Param{Name: "name", In: "path", Required: true, Schema: text, Description: "Name of the node"}
	s.documentStream("/v1/nodes/{name}/console", "connect-console", "Open a byte stream to a machine's serial console",
		"HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. Answered by 101, the connection is then the stream.",
		[]*huma.Param{node}, nil, codeNoNode, codeNotMachine, codeUpgrade, codeConsole)
}

// documentVolumeStreams adds the ways of backups.
func (s *Server) documentVolumeStreams() {
	text := &huma.Schema{Type: huma.TypeString}
	volume := &huma.Param{Name: "name", In: "path", Required: true, Schema: text, Description: "NAME or a UID; of another project PROJECT.NAME"}
	s.documentStream("/v1/volumes/{name}/backup", "back-up-volume", "Read a backup of a volume",
		"HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. Answered by 101, the connection is then a tar file, compressed with zstd, of all "+
			"files of the volume at this moment. Its last 1024 bytes are a frame that zstd skips, with JSON: the backup is whole if that has no `failure`.",
		[]*huma.Param{volume, {Name: "snapshot", In: "query", Schema: text, Description: "Name of the snapshot to read instead"}},
		nil, codeNoVolume, codeNoVolumeSnapshot, codeVolumeDeleted, codeVolumeImporting, codeUpgrade, codeUnreachable)
	s.documentStreamBy(http.MethodPost, "/v1/volumes/{name}/content", "send-volume-content", "Send the backup that a volume is made of",
		"For a volume that was created with `from_backup`, once its `import` is there. HTTP/1.1 with `Connection: Upgrade` and `Upgrade: "+tunnelProtocol+"`. "+
			"Answered by 101, the client sends the backup and ends its direction. The node answers with 1024 bytes, a frame of zstd with JSON as at the end of a "+
			"backup: without `failure`, the volume is whole and on the disk. After a failure, or without an answer, nothing of it is there, and it can be sent again.",
		[]*huma.Param{volume}, nil, codeNoVolume, codeVolumeDeleted, codeVolumeNotImporting, codeUpgrade, codeUnreachable)
}

// documentBuildLog adds the output of builds.
func (s *Server) documentBuildLog() {
	text := &huma.Schema{Type: huma.TypeString}
	number := &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: new(float64)}
	boolean := &huma.Schema{Type: huma.TypeBoolean}
	build := &huma.Param{Name: "id", In: "path", Required: true, Schema: text, Description: "ID of the build"}
	s.documentStream("/v1/builds/{id}/log", "get-build-log", "Read or follow a build's output",
		"The output as plain bytes, as they came. With `follow` the answer goes on until this attempt at the build is over.",
		[]*huma.Param{
			build,
			{Name: "offset", In: "query", Schema: number, Description: "Omit this many bytes at the beginning"},
			{Name: "follow", In: "query", Schema: boolean, Description: "Go on until this attempt is over"},
			{Name: "attempt", In: "query", Schema: number, Description: "Which attempt; the newest by default"},
		}, map[string]*huma.MediaType{"text/plain": {Schema: text}}, codeNoBuild, codeLogRemoved)
}

// documentUpload adds the upload of disk images.
func (s *Server) documentUpload() {
	const path = uploadsPath + "{hex}"
	op := &huma.Operation{
		OperationID: "upload", Method: http.MethodPut, Path: path, Summary: "Upload a disk image",
		Description: "The file as it is, for a build whose recipe has `base: {disk: sha256:HEX}`. A file that the server has is not read again (200). " +
			"What no build uses is removed after an hour.",
		Tags: []string{tagOf(path)}, Security: s.security(http.MethodPut + " " + path),
		Parameters: []*huma.Param{{
			Name: "hex", In: "path", Required: true, Description: "The 64 hexadecimal digits of the file's SHA-256",
			Schema: &huma.Schema{Type: huma.TypeString, Pattern: "^[0-9a-f]{64}$"},
		}},
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}},
		Responses: map[string]*huma.Response{"201": {Description: "The file was stored"}},
	}
	op.Responses = s.responses(op, http.StatusCreated, []Code{codeDigest, codeNoSpace, codeMalformed})
	op.Responses["200"] = &huma.Response{Description: "The server has the file already"}
	s.api.OpenAPI().AddOperation(op)
}

// documentUsage adds the usage report.
func (s *Server) documentUsage() {
	// Dates are bounded by their form; from before to, and neither out of range, is for the handler.
	when := &huma.Schema{Type: huma.TypeString, Pattern: `^([0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+(Z|[+-][0-9:]+))?)?$`, Examples: []any{"2026-01-31"}}
	word := func(name, description string, all ...string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Schema: words(all...), Description: description}
	}
	s.documentStream("/v1/usage", "get-usage", "Report usage",
		"Exact sums over the stored usage for any time. They cover the token's project; for an administrator all projects, with the site's capacity and its use.",
		[]*huma.Param{
			{Name: "from", In: "query", Schema: when, Description: "Begin, RFC 3339 or a date; a day before the end by default"},
			{Name: "to", In: "query", Schema: when, Description: "End, RFC 3339 or a date; now by default"},
			word("period", "A row for each of these, in UTC; none by default", "none", "hour", "day", "week", "month"),
			word("by", "A row for each of these; project by default", "cluster", "user", "project", "all", "site"),
			word("format", "json by default", "json", "csv"),
		}, map[string]*huma.MediaType{
			"application/json": {Schema: s.schema(reflect.TypeFor[api.UsageReport]())}, "text/csv": {Schema: &huma.Schema{Type: huma.TypeString}},
		})
}

// sseOf is the content of a stream of events whose data are such things.
func sseOf(schema string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"text/event-stream": {
		Schema: &huma.Schema{Type: huma.TypeString, Description: "Events whose data are " + schemaPrefix + schema},
	}}
}

func (s *Server) documentStream(path, id, summary, description string, params []*huma.Param,
	content map[string]*huma.MediaType, codes ...Code,
) {
	s.documentStreamBy(http.MethodGet, path, id, summary, description, params, content, codes...)
}

func (s *Server) documentStreamBy(method, path, id, summary, description string, params []*huma.Param,
	content map[string]*huma.MediaType, codes ...Code,
) {
	status := http.StatusOK
	if content == nil {
		status = http.StatusSwitchingProtocols
	}
	op := &huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Description: description, Tags: []string{tagOf(path)},
		Parameters: params, Security: s.security(method + " " + path),
		Responses: map[string]*huma.Response{strconv.Itoa(status): {Description: http.StatusText(status), Content: content}},
	}
	op.Responses = s.responses(op, status, codes)
	s.api.OpenAPI().AddOperation(op)
}
