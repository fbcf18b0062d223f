CREATE PROCEDURE `@run7`(IN script LONGTEXT CHARACTER SET utf8mb4) MODIFIES SQL DATA SQL SECURITY INVOKER
COMMENT 'runs statements: a JSON array of arrays, each with the conditions of a statement, separated by commas, and its text'
BEGIN
    DECLARE done INT DEFAULT 0;
    DECLARE needs VARCHAR(64) CHARACTER SET utf8mb4;
    DECLARE step LONGTEXT CHARACTER SET utf8mb4;
    DECLARE steps CURSOR FOR SELECT s.needs, s.step FROM JSON_TABLE(script, '$[*]' COLUMNS (
        needs VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]', step LONGTEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS s;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = 1;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    OPEN steps;
    all_steps: LOOP
        SET done = 0;
        FETCH steps INTO needs, step;
        IF done THEN
            LEAVE all_steps;
        END IF;
        IF (NOT FIND_IN_SET('@outcome = 0', needs) OR @outcome = 0)
        AND (NOT FIND_IN_SET('@outcome IS NULL', needs) OR @outcome IS NULL)
        AND (NOT FIND_IN_SET('@tight', needs) OR @tight)
        AND (NOT FIND_IN_SET('NOT @tight', needs) OR NOT @tight)
        AND (NOT FIND_IN_SET('@replaced', needs) OR @replaced)
        AND (NOT FIND_IN_SET('@released', needs) OR @released)
        AND (NOT FIND_IN_SET('@shared_rows', needs) OR @shared_rows)
        AND (NOT FIND_IN_SET('@is_new', needs) OR @is_new)
        AND (NOT FIND_IN_SET('@is_condemned', needs) OR @is_condemned) THEN
            CASE step
            WHEN 'START TRANSACTION' THEN START TRANSACTION; -- MySQL cannot prepare it
            WHEN 'COMMIT' THEN COMMIT;
            ELSE
                SET @statement = step;
                PREPARE statement FROM @statement;
                EXECUTE statement;
                DEALLOCATE PREPARE statement;
            END CASE;
        END IF;
    END LOOP;
    CLOSE steps;
END
