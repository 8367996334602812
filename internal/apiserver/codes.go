package apiserver

import "net/http"

// Code is one kind of error the API answers with. Codes are stable: programs test them.
type Code struct {
	Code   string
	Status int
	// Title is the meaning in a few words.
	Title string
	// Meaning and Remedy are for docs/api-errors.md.
	Meaning string
	Remedy  string
}

// The codes. Every one stands in codeTable, and a test makes every one occur.
var (
	codeMalformed = Code{
		"malformed_request", http.StatusBadRequest, "The request's body can't be read",
		"The body is empty or not well-formed JSON or YAML; `errors[].line` names the line.", "Correct the syntax at that line.",
	}
	codeParameter = Code{
		"invalid_parameter", http.StatusBadRequest, "A parameter is wrong",
		"A parameter of the path, the query or a header has an invalid value.", "Correct the parameter named in `errors`.",
	}
	codeUnauthorized = Code{
		"unauthorized", http.StatusUnauthorized, "No valid token",
		"The request carries no bearer token, the server does not know the token, or the token has ended.",
		"Use a token that is valid, the token file of this server (DIR/token), or the Unix socket on its machine.",
	}
	codeForbidden = Code{
		"forbidden", http.StatusForbidden, "Not allowed",
		"The token is valid, but its role or its limits do not allow the request: viewers only read, members act only in their project, some " +
			"requests require an administrator, and agents only open their streams. A limited token lacks the verb, or may not make a cluster of that name. Or an enrollment " +
			"token does not let a node in.",
		"Use a token of the role, or with the verb, that `detail` names.",
	}
	codeNodeUnknown = Code{
		"node_unknown", http.StatusUnauthorized, "No identity of this site",
		"The node shows a certificate of another site, or one whose identity was revoked or has another key by now.",
		"Enroll the node: revoke it if it is still listed, and start its agent with a new enrollment token.",
	}
	codeNodePending = Code{
		"node_pending", http.StatusForbidden, "The node waits for approval",
		"The node has enrolled, and no administrator has approved it.", "Compare the fingerprint of its key, and approve it: nearmetal node approve NAME.",
	}
	codeCertificateEnded = Code{
		"certificate_ended", http.StatusUnauthorized, "The node's certificate has ended",
		"The time of the node's certificate is over. Its identity still holds.", "None: the agent renews the certificate by itself.",
	}
	codeNodeTaken = Code{
		"node_taken", http.StatusConflict, "The node's name is taken",
		"A node of this name is enrolled with another key, or a machine of this name boots from this site.",
		"Start the agent with another --name. If it replaces that node, revoke that first: nearmetal node revoke NAME.",
	}
	codeNoPath = Code{
		"no_such_path", http.StatusNotFound, "Nothing exists at this path",
		"The API has no such path.", "See /openapi.json for the existing paths.",
	}
	codeNoCluster = Code{
		"cluster_not_found", http.StatusNotFound, "The cluster does not exist",
		"No cluster that the token may see has this name: it was never created, was deleted, or belongs to another project.",
		"List the clusters and correct the name.",
	}
	codeNoTrace = Code{
		"trace_not_found", http.StatusNotFound, "No trace of the cluster is kept",
		"Traces are kept in memory: the server was started after the cluster was made, or has since made many others.",
		"Create a cluster, and ask for its trace.",
	}
	codeNoMember = Code{
		"member_not_found", http.StatusNotFound, "The member does not exist",
		"No placed member of the cluster has this name.", "Show the cluster and correct the name.",
	}
	codeNoProject = Code{
		"project_not_found", http.StatusNotFound, "The project does not exist",
		"No project that the token may see has this name.", "List the projects and correct the name.",
	}
	codeNoToken = Code{
		"token_not_found", http.StatusNotFound, "The token does not exist",
		"No created token has this ID; the token in DIR/token is not listed.", "List the tokens and correct the ID.",
	}
	codeNoJob = Code{
		"job_not_found", http.StatusNotFound, "The job does not exist",
		"No job has this ID.", "List the jobs and correct the ID.",
	}
	codeNoNode = Code{
		"node_not_found", http.StatusNotFound, "The node does not exist",
		"No node of this name has ever connected, and no machine of this name was enrolled.", "List the nodes and correct the name.",
	}
	codeNoNetwork = Code{
		"network_not_found", http.StatusNotFound, "The network does not exist",
		"No network that the token may see has this name or UID: it was deleted, belongs to another project, or its cluster has none yet.",
		"List the networks and correct the name.",
	}
	codeUnknownNetwork = Code{
		"unknown_network", http.StatusUnprocessableEntity, "The project has no such network",
		"A group names a network of the cluster's project that does not exist or is being deleted; `errors` lists the networks of the project.",
		"Choose a listed network, or create it: nearmetal network create NAME.",
	}
	codeNetworkExists = Code{
		"network_exists", http.StatusConflict, "The network's name is taken",
		"The project has a network of this name, or one that is still being deleted.", "Choose another name, or delete the network and wait until it is gone.",
	}
	codeNetworkInUse = Code{
		"network_in_use", http.StatusConflict, "The network is in use",
		"Clusters name the network, or it is the private network of a cluster and ends with it; `detail` names them.", "Delete the clusters first.",
	}
	codeVLANTaken = Code{
		"vlan_taken", http.StatusConflict, "The VLAN is in use",
		"Another network has the requested VLAN.", "Choose another VLAN of the site's pool, or omit it to get a free one.",
	}
	codeNoVLANs = Code{
		"no_vlans", http.StatusConflict, "The site has no VLANs",
		"The server was started without a pool of VLANs, no node has a usable trunk nor an Ethernet adapter for members, all VLANs are in use, or the underlay is encrypted.",
		"Have an administrator start the servers with --vlan-pool and agents with --trunk-interface or --fabric.",
	}
	codePKeyTaken = Code{
		"pkey_taken", http.StatusUnprocessableEntity, "The partition key is in use",
		"Another network has the requested partition key.", "Choose another partition key of the site's pool, or omit it to get a free one.",
	}
	codeNoInfiniBand = Code{
		"no_infiniband", http.StatusUnprocessableEntity, "The site has no partitions for networks",
		"The server was started without a pool of partition keys or without control of an InfiniBand fabric, all keys are in use, or there is no such cell.",
		"Have an administrator start the servers with --pkey-pool and control of the fabric, or name another cell.",
	}
	codeSubnetTaken = Code{
		"subnet_taken", http.StatusConflict, "The subnet is taken",
		"The requested prefix overlaps the subnet of another network of the site.", "Choose another prefix, or omit it to get a free one.",
	}
	codeAddressTaken = Code{
		"address_taken", http.StatusConflict, "The address is taken",
		"A group has a fixed address that another member has, or that is fixed for another group; `detail` names the address.",
		"Choose another address, or wait until its member is gone.",
	}
	codeTooManyNetworks = Code{
		"too_many_networks", http.StatusConflict, "The project has too many networks",
		"The project has as many networks as a project may have; `detail` names the limit.", "Delete a network first.",
	}
	codeNoAddress = Code{
		"floating_address_not_found", http.StatusNotFound, "The floating address is not the project's",
		"No project that the token may see has allocated this address.", "List the floating addresses and correct the address, or allocate it.",
	}
	codeNoFloatingPool = Code{
		"no_floating_pool", http.StatusConflict, "The site has no floating addresses",
		"The server was started without a pool of floating addresses.", "Have an administrator start the server with --floating-pool PREFIX.",
	}
	codeFloatingPoolFull = Code{
		"floating_pool_full", http.StatusConflict, "No floating address is free",
		"Projects have allocated all addresses of the site's pool.", "Release an address, or have an administrator add a pool.",
	}
	codeAddressHeld = Code{
		"floating_address_taken", http.StatusConflict, "The floating address is allocated already",
		"The project or another one has the address.", "Choose another address, or omit it to get a free one.",
	}
	codeAddressAssigned = Code{
		"floating_address_assigned", http.StatusConflict, "The floating address leads to a member",
		"An address leads to one member at a time, and a member has one address outside; `detail` names both.", "Unassign the address first, or allocate another one.",
	}
	codeNoWayOut = Code{
		"no_way_out", http.StatusConflict, "The member has no way out",
		"A floating address can lead only to a member on a network with egress.", "Create the cluster with --egress.",
	}
	codeNoSecurityGroup = Code{
		"security_group_not_found", http.StatusNotFound, "The security group does not exist",
		"No security group that the token may see has this name or UID: it was deleted, or belongs to another project.",
		"List the security groups and correct the name.",
	}
	codeUnknownSecurityGroup = Code{
		"unknown_security_group", http.StatusUnprocessableEntity, "The project has no such security group",
		"A cluster or a rule names a security group that the project does not have; `detail` lists those of the project.",
		"Choose a listed security group, or create it: nearmetal security-group create NAME.",
	}
	codeSecurityGroupExists = Code{
		"security_group_exists", http.StatusConflict, "The security group's name is taken",
		"The project has a security group of this name.", "Choose another name, or change the rules of the security group.",
	}
	codeSecurityGroupInUse = Code{
		"security_group_in_use", http.StatusConflict, "The security group is in use",
		"Clusters or rules of other security groups name it; `detail` names them.", "Delete the clusters, or remove the rules, first.",
	}
	codeTooManySecurityGroups = Code{
		"too_many_security_groups", http.StatusConflict, "The project has too many security groups",
		"The project has as many security groups as a project may have; `detail` names the limit.", "Delete a security group first.",
	}
	codeNoVolume = Code{
		"volume_not_found", http.StatusNotFound, "The volume does not exist",
		"No volume that the token may see has this name or UID: it was purged, or belongs to another project.", "List the volumes and correct the name.",
	}
	codeUnknownVolume = Code{
		"unknown_volume", http.StatusUnprocessableEntity, "The project has no such volume",
		"A cluster names a volume that the project does not have, or that was deleted.",
		"Choose one of 'nearmetal volume list', or create it: nearmetal volume create NAME --size SIZE.",
	}
	codeVolumeExists = Code{
		"volume_exists", http.StatusConflict, "The volume's name is taken",
		"The project has a volume of this name. A deleted volume keeps its name until it is purged.", "Choose another name, or undelete or purge the volume.",
	}
	codeVolumeInUse = Code{
		"volume_in_use", http.StatusConflict, "The volume is in use",
		"Clusters have the volume attached, and not as the request needs; `detail` names them.", "Detach the volume from the clusters or delete them first, or attach it read-only.",
	}
	codeCantAttach = Code{
		"cant_attach", http.StatusConflict, "The volume can't be attached or detached",
		"Members have their home until they end, booted machines take no volumes, members with the disk of another system only block volumes, and members reach volumes on their own node; `detail` has the reason.",
		"Create a cluster with the volume, or attach it in another way.",
	}
	codeVolumeIsBlock = Code{
		"volume_is_block", http.StatusConflict, "The volume is a block device",
		"Backups contain files, and nodes never read the content of a block volume.",
		"Create a snapshot, or copy the files from inside the machine.",
	}
	codeNotAttached = Code{
		"volume_not_attached", http.StatusNotFound, "The cluster does not have the volume",
		"The cluster has no volume of this name attached.", "Show the cluster and correct the name.",
	}
	codeVolumeDeleted = Code{
		"volume_deleted", http.StatusConflict, "The volume was deleted",
		"The volume is kept for its retention and can't be used or changed.", "Undelete it first: nearmetal volume undelete NAME.",
	}
	codeVolumePurging = Code{
		"volume_purging", http.StatusConflict, "The volume is being purged",
		"The retention of the deleted volume is over, and its node wipes it.", "Create a new volume.",
	}
	codeVolumeTooFull = Code{
		"volume_too_full", http.StatusConflict, "The volume holds more than that",
		"A volume can't shrink below what it holds; `detail` has both numbers.", "Delete files first, or give a larger size.",
	}
	codeVolumeRestoring = Code{
		"volume_restoring", http.StatusConflict, "The volume is being restored",
		"The volume is being restored from this snapshot.", "Wait until that is done.",
	}
	codeVolumeImporting = Code{
		"volume_importing", http.StatusConflict, "The volume waits for a backup",
		"The volume is made of a backup that has not arrived whole yet. It can't be attached, cloned, backed up or restored, and has no snapshots.",
		"Send the backup: nearmetal volume create NAME --from-backup FILE.",
	}
	codeVolumeNotImporting = Code{
		"volume_not_importing", http.StatusConflict, "The volume waits for no backup",
		"Only a volume that was created with from_backup takes a backup, until it has taken one.", "Create a new volume of the backup.",
	}
	codeTooManyVolumes = Code{
		"too_many_volumes", http.StatusConflict, "The project has too many volumes",
		"The project has as many volumes as a project may have; `detail` names the limit.", "Delete a volume with now=true first.",
	}
	codeNoVolumeSnapshot = Code{
		"volume_snapshot_not_found", http.StatusNotFound, "The volume has no such snapshot",
		"The volume has no snapshot of this name.", "List the volume's snapshots.",
	}
	codeVolumeSnapshotExists = Code{
		"volume_snapshot_exists", http.StatusConflict, "The snapshot's name is taken",
		"The volume has a snapshot of this name.", "Choose another name, or delete the snapshot.",
	}
	codeTooManyVolumeSnapshots = Code{
		"too_many_volume_snapshots", http.StatusConflict, "The volume has too many snapshots",
		"The volume has as many snapshots as a volume may have; `detail` names the limit.", "Delete a snapshot.",
	}
	codeNoEnvironment = Code{
		"environment_not_found", http.StatusNotFound, "The environment does not exist",
		"No node has an environment of this name, and none was built.", "List the environments and correct the name.",
	}
	codeMethod = Code{
		"method_not_allowed", http.StatusMethodNotAllowed, "The path does not support this method",
		"The path exists, but not with this HTTP method; the `Allow` header lists the supported methods.", "Use a method that the `Allow` header lists.",
	}
	codeTimeout = Code{
		"request_timeout", http.StatusRequestTimeout, "The request's body came too slowly",
		"The body was not complete in time.", "Send it again.",
	}
	codeClusterExists = Code{
		"cluster_exists", http.StatusConflict, "The name is taken",
		"A cluster of this name exists or is still being deleted. Of two simultaneous creates exactly one wins.",
		"Choose another name, or delete the cluster and wait until it is gone.",
	}
	codeWrongPhase = Code{
		"wrong_phase", http.StatusConflict, "The cluster's phase does not allow it",
		"The request is not possible in the cluster's phase; `detail` names the phase and what to do.",
		"Do what `detail` says, then try again.",
	}
	codeNoRoom = Code{
		"no_room", http.StatusConflict, "No room is free now",
		"The new members don't fit now, and the request does not allow waiting; `detail` names what is short.",
		"Request less, try later, or let the request wait for room with `queue`.",
	}
	codeOverQuota = Code{
		"over_quota", http.StatusConflict, "More than the project may hold",
		"The cluster would be larger than its project's quota, or the quota is used up and the request does not allow waiting.",
		"Request less, free something, or have an administrator raise the quota.",
	}
	codeCantExtend = Code{
		"cant_extend", http.StatusConflict, "The time limit can't be changed that way",
		"The cluster has no time limit, the new limit is not longer or already over, the old limit has passed, or other requests wait for the room.",
		"See `detail`; an administrator may extend while others wait.",
	}
	codeCantPause = Code{
		"cant_pause", http.StatusConflict, "The cluster can't be paused",
		"The files of a member that has a whole machine could not be saved, and its root ends with the machine's power. Nothing was changed.",
		"See `detail`, then pause it again.",
	}
	codeCantSave = Code{
		"cant_save", http.StatusConflict, "The cluster can't be saved",
		"Only virtual machines can be saved with their memory, and no devices; only whole machines have changed files to save.",
		"See `detail`. Pause the cluster instead, or create it with stack `vm` and without devices.",
	}
	codeKeysFound = Code{
		"keys_found", http.StatusConflict, "The files have private keys",
		"Files of the member have private keys, or keys of the cluster itself. Nothing was saved; `detail` and `errors` name the files.",
		"Delete the files, or name your own keys in `keep_keys`. Keys of the cluster itself are never saved.",
	}
	codeEnvironmentExists = Code{
		"environment_exists", http.StatusConflict, "The name is taken",
		"An environment of this name exists, or is being built. It may be another project's, which you don't see.", "Choose another name, or delete the environment.",
	}
	codeCantMove = Code{
		"cant_move", http.StatusConflict, "The member can't move to another node",
		"Only virtual machines without devices can move, and no disks of other systems.",
		"See `detail`. Members of other kinds are replaced when they are lost, or leave with their cluster.",
	}
	codeCantReboot = Code{
		"cant_reboot", http.StatusConflict, "The member can't reboot",
		"Only virtual machines can reboot.",
		"See `detail`. A container that no longer works is replaced; a machine is rebooted by `nearmetal node power`.",
	}
	codeCantResize = Code{
		"cant_resize", http.StatusConflict, "The members can't be resized",
		"Only virtual machines without devices can be resized, and disks can only grow.",
		"See `detail`. Create another cluster with the size that you need.",
	}
	codeNoSnapshot = Code{
		"snapshot_not_found", http.StatusNotFound, "No such snapshot",
		"The cluster has no snapshot of this name.", "List the cluster's snapshots.",
	}
	codeSnapshotExists = Code{
		"snapshot_exists", http.StatusConflict, "The snapshot exists",
		"The cluster has a snapshot of this name.", "Choose another name, or delete the snapshot.",
	}
	codeTooManySnapshots = Code{
		"too_many_snapshots", http.StatusConflict, "Too many snapshots",
		"The cluster has as many snapshots as a cluster may have.", "Delete a snapshot.",
	}
	codeCantRestore = Code{
		"cant_restore", http.StatusConflict, "The snapshot can't be restored",
		"The snapshot is not complete, is on a node that is down, or has other members than the cluster.",
		"See `detail`, which says what to change.",
	}
	codeProjectExists = Code{
		"project_exists", http.StatusConflict, "The project exists",
		"A project of this name exists.", "Choose another name, or change the project.",
	}
	codeProjectInUse = Code{
		"project_in_use", http.StatusConflict, "The project is in use",
		"The project owns clusters, networks, security groups or tokens, or is the default project, which always exists.", "Delete what `detail` names first.",
	}
	codeQuotaInUse = Code{
		"quota_in_use", http.StatusConflict, "More than the quota is in use",
		"The quota is below what the project's clusters hold now; `errors` names both numbers.", "Free something first, or give a higher quota.",
	}
	codeNodeInUse = Code{
		"node_in_use", http.StatusConflict, "The node is in use",
		"The node's agent is connected, or members or quarantined resources are on it; `detail` names them.",
		"Drain the node, wait until it is empty, and stop its agent.",
	}
	codeNotReady = Code{
		"cluster_not_ready", http.StatusConflict, "The cluster is not ready",
		"Jobs run on ready clusters only; `detail` names the phase of the cluster.", "Wait until it is ready, or see its events.",
	}
	codeNoAgent = Code{
		"no_agent", http.StatusConflict, "A member has no agent",
		"Jobs need an agent in every member. An environment that was imported from the disk of another system has none.",
		"Use SSH, or an environment that was built.",
	}
	codeHistoryGone = Code{
		"history_gone", http.StatusGone, "The requested history is gone",
		"A watch can't be resumed after this `Last-Event-ID`: the changes after it are no longer kept, or never existed.",
		"Watch again without `Last-Event-ID`; where that does not send everything that exists first, list it.",
	}
	codeLogRemoved = Code{
		"log_removed", http.StatusGone, "The output was removed",
		"The server removed the stored output of this ended run to keep within the limits of stored output: the oldest goes first.",
		"Redirect output that has to be kept to a file; an administrator may raise the limits (`--log-limit`, `--project-log-limit`).",
	}
	codeTooLarge = Code{
		"body_too_large", http.StatusRequestEntityTooLarge, "The request's body is too large",
		"The body is longer than any valid request.", "Send less.",
	}
	codeMediaType = Code{
		"unsupported_media_type", http.StatusUnsupportedMediaType, "The body's type is not supported",
		"The `Content-Type` is neither application/json nor application/yaml.", "Send application/json or application/yaml.",
	}
	codeInvalidCluster = Code{
		"invalid_cluster", http.StatusUnprocessableEntity, "The requested cluster is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeInvalidJob = Code{
		"invalid_job", http.StatusUnprocessableEntity, "The requested job is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeInvalidRequest = Code{
		"invalid_request", http.StatusUnprocessableEntity, "The request is invalid",
		"Fields are unknown, of a wrong type or out of range; `errors` lists every one with its location and line.",
		"Correct the fields.",
	}
	codeOtherCluster = Code{
		"other_cluster", http.StatusUnprocessableEntity, "The file is for another cluster",
		"The name in the body is not the name in the path; `detail` names both.", "Apply the file under its own name.",
	}
	codeUnchangeable = Code{
		"unchangeable", http.StatusUnprocessableEntity, "Some fields can't be changed",
		"The cluster exists, and fields differ that are fixed for its life; `errors` lists every one.",
		"Restore the fields, or create another cluster.",
	}
	codeUnknownEnvironment = Code{
		"unknown_environment", http.StatusUnprocessableEntity, "No node has the environment",
		"A group requests an environment that no node reports; `detail` lists the known environments.", "Choose a listed environment.",
	}
	codeUnknownShape = Code{
		"unknown_shape", http.StatusUnprocessableEntity, "The site has no such shape",
		"A group names a shape that the site does not have; `errors` lists those it has.", "Choose a listed shape, or give cores and memory.",
	}
	codeNoShape = Code{
		"shape_not_found", http.StatusNotFound, "The shape does not exist",
		"The site has no shape of this name.", "List the shapes and correct the name.",
	}
	codeUnknownStack = Code{
		"stack_unavailable", http.StatusUnprocessableEntity, "No node offers the stack",
		"A group requests a stack that passed no node's host checks; `detail` lists the offered stacks.",
		"Choose an offered stack, or fix what `nearmetal node show` reports about a node.",
	}
	codeTooManyRanks = Code{
		"too_many_ranks", http.StatusUnprocessableEntity, "More ranks than cores",
		"The job requests more MPI ranks than the cluster has cores.", "Request at most as many ranks, or use a larger cluster.",
	}
	codeTooManyJobs = Code{
		"too_many_jobs", http.StatusConflict, "Too many jobs wait",
		"The cluster or its project has reached its limit of unfinished jobs; `detail` names the limit.",
		"Wait until some jobs have ended, or cancel some.",
	}
	codeUpgrade = Code{
		"upgrade_required", http.StatusUpgradeRequired, "The connection has to be upgraded",
		"A tunnel is opened by HTTP/1.1 with `Connection: Upgrade` and `Upgrade: nearmetal-tunnel`.", "Send these headers, by HTTP/1.1.",
	}
	codeInternal = Code{
		"internal_error", http.StatusInternalServerError, "The server failed",
		"The server failed, and the request is not the cause; the log explains the failure under the ID in `detail`.",
		"Try again; if it happens again, report it with the log.",
	}
	codeUnreachable = Code{
		"member_unreachable", http.StatusBadGateway, "The member can't be reached",
		"The agent of the member's node is not connected, or the member does not accept the connection; `detail` says which.",
		"See the cluster's members, then try again.",
	}
	codeHomeUnknown = Code{
		"home_unknown", http.StatusBadGateway, "The shared home can't be measured",
		"The agents of the cluster's nodes are not connected, or can't read its home; `detail` says which.",
		"Try again when the nodes are back. Treat the home as holding files.",
	}
	codeHostUnchecked = Code{
		"host_unchecked", http.StatusBadGateway, "The host of the node can't be checked",
		"The agent of the node is not connected, is busy with another check, or could not finish it; `detail` says which.",
		"Try again when the node is back, or run 'nearmetal node check' on it.",
	}
	codeNetworkUnchecked = Code{
		"network_unchecked", http.StatusConflict, "The network can't be checked",
		"The network has no subnet yet, or its subnet was refused; `detail` says which.",
		"Show the network, and try again when its phase is `ready`.",
	}
	codeNoFabric = Code{
		"fabric_not_found", http.StatusNotFound, "The fabric does not exist",
		"The site has no fabric (cell) of this name.", "List the fabrics and correct the name.",
	}
	codeFabricUnaudited = Code{
		"fabric_unaudited", http.StatusUnprocessableEntity, "The fabric can't be audited",
		"No executor reads the tables of the fabric's switches, or they can't be read now; `detail` says which.",
		"For an Ethernet, check its networks: nearmetal network check NAME. Else see what `nearmetal fabric show` reports, and try again.",
	}
	codeUnavailable = Code{
		"unavailable", http.StatusServiceUnavailable, "The server can't serve now",
		"The server is starting, stopping, or its state store does not answer. A change may or may not have been stored.",
		"Check whether the change was made, then try again.",
	}
)

// codeTable lists every code in the order of the documentation.
func codeTable() []Code {
	return append([]Code{
		codeMalformed, codeParameter, codeUnauthorized, codeForbidden, codeNodeUnknown, codeNodePending, codeCertificateEnded, codeNodeTaken, codeNoPath, codeNoCluster, codeNoTrace, codeNoMember, codeNoJob, codeNoNode,
		codeNoNetwork, codeUnknownNetwork, codeNetworkExists, codeNetworkInUse, codeSubnetTaken, codeVLANTaken, codeNoVLANs, codePKeyTaken, codeNoInfiniBand, codeAddressTaken, codeTooManyNetworks, codeNoSecurityGroup, codeUnknownSecurityGroup,
		codeSecurityGroupExists, codeSecurityGroupInUse, codeTooManySecurityGroups, codeNoDataset, codeUnknownDataset, codeUnfitDataset, codeDatasetExists, codeDatasetInUse, codeReplicaInUse, codeTooManyDatasets, codeNoVolume, codeUnknownVolume, codeVolumeExists, codeVolumeInUse, codeCantAttach, codeVolumeIsBlock, codeNotAttached, codeCantAddLayer, codeNoLayer, codeNoCondition, codeVolumeDeleted, codeVolumePurging, codeVolumeTooFull, codeVolumeRestoring, codeVolumeImporting, codeVolumeNotImporting, codeTooManyVolumes, codeNoVolumeSnapshot, codeVolumeSnapshotExists, codeTooManyVolumeSnapshots,
		codeNoAddress, codeNoFloatingPool, codeFloatingPoolFull, codeAddressHeld, codeAddressAssigned, codeNoWayOut, codeNoEnvironment, codeNoProject, codeNoToken, codeMethod, codeTimeout, codeClusterExists, codeWrongPhase, codeNoRoom, codeOverQuota,
		codeCantExtend, codeCantPause, codeCantSave, codeKeysFound, codeEnvironmentExists, codeCantMove, codeCantReboot, codeCantResize, codeNoSnapshot, codeSnapshotExists, codeTooManySnapshots, codeCantRestore, codeProjectExists, codeProjectInUse, codeQuotaInUse, codeNodeInUse, codeNotReady, codeNoAgent, codeHistoryGone, codeLogRemoved, codeTooLarge,
		codeMediaType, codeInvalidCluster, codeInvalidJob, codeInvalidRequest, codeOtherCluster, codeUnchangeable, codeUnknownEnvironment,
		codeUnknownShape, codeNoShape, codeUnknownStack, codeTooManyRanks, codeTooManyJobs, codeUpgrade, codeInternal, codeUnreachable, codeHomeUnknown, codeHostUnchecked, codeNetworkUnchecked, codeNoFabric, codeFabricUnaudited, codeUnavailable,
	}, machineCodes()...)
}
