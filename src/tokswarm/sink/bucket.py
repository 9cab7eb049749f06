"""How a missing bucket is made, in the words of the server that is there. Pure."""

import shlex


def create_command(version: str, *, bucket: str, org: str) -> str | None:
    """The command that makes the bucket on a server of this version; None for a server that is none of InfluxData's."""
    match version.lstrip("v").partition(".")[0]:
        case "1":
            database, _, policy = bucket.partition("/")
            statement = f'CREATE DATABASE "{database}"'
            if policy and policy != "autogen":
                statement += f' WITH DURATION 30d NAME "{policy}"'
            return f"influx -execute {shlex.quote(statement)}"
        case "2":
            return f"influx bucket create --org {shlex.quote(org)} --name {shlex.quote(bucket)} --retention 30d"
        case "3":
            return f"influxdb3 create database {shlex.quote(bucket)}"
    return None
